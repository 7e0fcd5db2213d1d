"use strict";

const page = document.getElementById("page");
const here = new URL(".", document.baseURI);

async function description() {
  const response = await fetch(new URL("openapi.json", here));
  if (!response.ok) throw new Error(`the request for openapi.json returned ${response.status}`);
  const specification = await response.json();
  // Send requests to the origin of this page, even if the service has another base URL: the content security policy allows
  // no other origin.
  specification.servers = [{ url: here.href.replace(/\/$/, "") }];
  return specification;
}

// Fields can hold tokens: turn off autocompletion, and spell checkers that send the text to a server. Turn off autofocus,
// too: with it in every field, the page would scroll to the last one.
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
    // A token is gone with the tab, and no description is sent to a validator elsewhere.
    persistAuthorization: false,
    validatorUrl: null,
  });
}

description().then(show).catch((wrong) => {
  page.textContent = `The API's description cannot be shown: ${wrong.message}. Load the page again.`;
});
