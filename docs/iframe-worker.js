// The search of the site, where it is read from a disk. No browser lets a page from there start a worker, so what would be one
// runs in a hidden frame. Anywhere else this does nothing.
"use strict";

// As between workers: later, never while whoever sends is still at work.
const deliver = (to, data) => setTimeout(() => to.dispatchEvent(new MessageEvent("message", { data })));

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.started = new Promise((started) => {
        const frame = document.createElement("iframe");
        frame.hidden = true;
        // Only now: until it is loaded, a browser may put another empty page in its place.
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
