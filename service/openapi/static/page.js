"use strict";

const page = document.getElementById("page");
const here = new URL(".", document.baseURI);

async function description() {
  const response = await fetch(new URL("openapi.json", here));
  if (!response.ok) throw new Error(`the request for openapi.json returned ${response.status}`);
  const specification = await response.json();
  // Send requests to the origin of this page, even if the service has another base URL. The content security policy allows
  // no other origin.
  specification.servers = [{ url: here.href.replace(/\/$/, "") }];
  return specification;
}

// Fields can contain tokens: turn off autocompletion, and spell checkers that send the text to a server. Turn off autofocus
// too: if every field had it, the page would scroll to the last one.
function withoutAutocompletion(Input, { React }) {
  return (its) => React.createElement(Input, { ...its, autoComplete: "off", spellCheck: false, autoFocus: false });
}

function show(specification) {
  SwaggerUIBundle({
    spec: specification,
    domNode: page,
    deepLinking: true,
    displayRequestDuration: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    filter: true,
    plugins: [{ wrapComponents: { Input: withoutAutocompletion } }],
    // Do not store a token beyond the tab, and send no description to an external validator.
    persistAuthorization: false,
    validatorUrl: null,
  });
}

description().then(show).catch((wrong) => {
  page.textContent = `The API's description cannot be shown: ${wrong.message}. Load the page again.`;
});
