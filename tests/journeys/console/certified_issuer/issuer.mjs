// A certified issuer of OpenID Connect, with one client, which must use PKCE. Every name and password signs in.
// node issuer.mjs FOLDER PORT CLIENT_ID CLIENT_SECRET HOME: the library is in FOLDER, the console at HOME/console.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, port, clientId, clientSecret, home] = process.argv.slice(2);
const library = createRequire(`${folder}/package.json`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(library).href);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: clientId,
      client_secret: clientSecret,
      redirect_uris: [`${home}/console/sign-in/callback`],
      post_logout_redirect_uris: [`${home}/console/sign-in`],
    },
  ],
  claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["groups"] },
  pkce: { required: () => true },
  cookies: { keys: ["a key of the tests"] },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  findAccount: (_context, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@agency.example`, email_verified: true, groups: ["triage"] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("listening"));
