// Makes the search work when the site is opened from a local disk. Browsers do not let such pages start a worker, so the
// worker's script runs in a hidden frame. On a web server this file does nothing.
"use strict";

// Deliver asynchronously, as between workers.
const deliver = (to, data) => setTimeout(() => to.dispatchEvent(new MessageEvent("message", { data })));

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.started = new Promise((started) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        // Wait for the load event: before it, a browser may replace the frame's document.
        frame.addEventListener("load", () => this.start(url, frame.contentWindow, started), { once: true });
        document.documentElement.append(frame);
      });
    }

    start(url, inside, started) {
      inside.postMessage = (data) => deliver(this, data);
      const script = inside.document.createElement("script");
      script.addEventListener("load", () => started(inside));
      script.src = url;
      inside.document.head.append(script);
    }

    postMessage(data) {
      this.started.then((inside) => deliver(inside, data));
    }
  };
}
