"""Text that must pass: scanner findings, customers' emails and documentation that resemble forbidden content."""

from typing import Any, Final

import pytest

from schemas.content_policy.rules import find
from schemas.exports.tickets.ticket_text import preview_problems
from schemas.intake.email_forms import EmailForm, inspected
from schemas.intake.scanner import PostbackForm
from tests.support.factories import issue, postback

#: Descriptions, evidence and advice of scanners (such as ZAP, Lighthouse, Nuclei, Wapiti, axe and linters).
FINDINGS: Final = [
    # passwords and password fields
    'Password field without autocomplete: <input type="password" name="password2" id="login-password-2" maxlength="72">',
    "The password input[name=password]:nth-of-type(2) has no label.",
    "form#login > label[for=password]:nth-child(3) > span.hint-2 has insufficient contrast (2.9:1).",
    "#customer-password:not(.is-valid1):focus-visible has no focus style.",
    "Password policy: at least 8 characters, one digit, one symbol. Password: min-8-characters is shown too late.",
    "Passwort: mindestens 8 Zeichen, davon 1 Ziffer",
    "Mot de passe : 8 caractères minimum",
    "Password: sha256-hashed, secret: base64-encoded",
    "Two checks pass: 12 of 12 (v1.2.3)",
    "password reset2 link, password field2 and passwords4all are words",
    "The help text “Password: required” is announced twice.",
    "Password autocomplete: current-password. See https://html.spec.whatwg.org/multipage/form-control-infrastructure.html#attr-fe-autocomplete-current-password",
    "Use password_hash($password, PASSWORD_BCRYPT) and password_verify($password, $hash).",
    "Hard-coded credentials were looked for (DB_PASSWORD=, password:, secret=) and none were found.",
    "DB_PASSWORD=${DB_PASSWORD}",
    "DB_PASSWORD=<password>",
    "DB_PASSWORD=changeme",
    "MYSQL_ROOT_PASSWORD=$(cat /run/secrets/db_root)",
    "POSTGRES_PASSWORD_FILE=/run/secrets/postgres-passwd-1",
    "define('DB_PASSWORD', 'password_here');",
    "define( 'AUTH_KEY', 'put your unique phrase here' );",
    "<password>string</password>",
    "<Password>Passwort</Password>",
    "Usage: login <user> <password>otherwise2 the default is used",
    "DB_PASSWORD=os.environ.DB_PASS",
    '{"password": "Contraseña", "authorization": "Not required here"}',
    "<th>Password</th><td>Required</td>",
    "password: process.env.DB_PASSWORD_2",
    "const password = getPassword(user1);",
    "password = os.environ['DB_PASSWORD1']",
    'password: "Your password must have 8 characters"',
    '{"password": "<TOKEN>"}',
    '{"login": "Anmelden", "password": "Passwort", "email": "E-Mail", "address": "Anschrift", "total": "Summe"}',
    '{"type": "object", "properties": {"password": {"type": "string", "minLength": 8}, "email": {"type": "string"}}}',
    '{"password": null, "api_key": "", "cookies": [], "session_id": "xxxx-xxxx"}',
    '{"cookies": true, "authorization": "required", "credentials": "include"}',
    # keys and tokens
    "X-Api-Key: <API_KEY>",
    "X-Api-Key: your-api-key",
    "X-Auth-Token: ${TOKEN}",
    "Send the header `X-Api-Key: xxxxxxxxxxxxxxxx` with each request.",
    "api_key = YOUR_API_KEY",
    "apiKey: '{{ api_key }}'",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    'The access key attribute accesskey="s" conflicts with a screen reader\'s shortcut.',
    "Key: hero-image-2, token: color-primary-500, secret: none",
    "design token: spacing-large-24 is unused",
    '<meta name="csrf-token" content="aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC">',
    '<input type="hidden" name="authenticity_token" value="aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC">',
    '<div data-api-key="aB3dE5gH7jK9mN1pQ4rS" data-widget="chat"></div>',
    'Firebase: apiKey: "AIza' + 'SyAdOS2zB6NCsk1pCdZ4P6GBdiUUPwX7cA"',
    'public_key = "9Cnzj4p4WGeKLs1Pt8QuKUpRKfFLfRYC9AIKjbJTWit"',
    "RECAPTCHA_SITE_KEY=6LdaB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zCaB3dE",
    'React key warning: each child in a list should have a unique "key" prop (key=product-item-42).',
    "-----BEGIN PRIVATE KEY----- internationalization of error messages",
    "-----BEGIN PRIVATE KEY-----\nMII...\n-----END PRIVATE KEY-----",
    'api_key = "ab1xxxxxxxxxxxxxxxxxxxxxxxxxxx"',
    "STRIPE_PUBLISHABLE_KEY=aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC",
    # URLs
    "https://shop.example/about?key=about",
    "https://shop.example/list?token=page-2",
    "default-src 'self'; report-uri https://o1.ingest.sentry.io/api/2/security/?sentry_key=9f86d081884c7d659a2feaa0c55ad015",
    "https://browser-intake-datadoghq.com/api/v2/logs?dd-api-key=pub9f86d081884c7d659a2feaa0c55ad015&dd-evp-origin=csp",
    "https://eu.posthog.com/decide/?api_key=phc_aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC",
    "Reduce unused JavaScript: https://static.zdassets.com/ekr/snippet.js?key=018d2a5c-1f0b-4e0a-9c55-0123456789ab",
    "https://shop.example/a?site_key=9f86d081884c7d65&public-key=9f86d081884c7d65&cachekey=9f86d081884c7d65",
    "GET /cart?id=1&form_key=aB3dE5gH7jK9mN1p&csrfmiddlewaretoken=aB3dE5gH7jK9mN1p&_csrf_token=aB3dE5gH7jK9mN1p",
    "/a?__RequestVerificationToken=aB3dE5gH7jK9mN1p&authenticity_token=aB3dE5gH7jK9mN1p",
    "https://shop.example/list?page_token=next&sort=price-asc-2",
    "https://shop.example/a?key=hero-banner-2024-edition",
    "https://shop.example/a?session_id=&token=",
    "https://shop.example/map?compass=north-west-2&bypass=cache-2026",
    "https://shop.example/login?pass=forgotten&passphrase=required&password2=repeated",
    "https://shop.example/a?token=<TOKEN>&sig=${SIG}",
    "https://maps.googleapis.com/maps/api/js?key=AIza" + "SyAdOS2zB6NCsk1pCdZ4P6GBdiUUPwX7cA&libraries=places",
    "https://shop.example/tee?variant=39372345678901&_sid=9f8e7d6c5&_pos=1",
    "https://shop.example/?utm_source=news-2024&gclid=aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC",
    "https://cdn.shop.example/a.css?v=0b1d3f5a7c9e2048d6af",
    "Parameters such as token, api_key, key, session_id and sig must not stand in a URL.",
    "The session_id is passed in the URL (session_id without a value was seen).",
    "postgres://user:password@localhost:5432/db is the default in the manual.",
    "https://${USER}:${PASS}@registry.shop.example/",
    # cookies and storage
    "Cookie set without Secure flag: document.cookie = 'theme=dark'",
    'document.cookie = "consent=accepted; path=/; max-age=31536000"',
    "document.cookie = `lang=${language}`",
    "document.cookie is read by a third-party script at https://cdn.shop.example/t.js:12.",
    'Cookie "PHPSESSID" has no SameSite attribute.',
    "Set-Cookie: sid=...; Path=/",
    "Set-Cookie: <name>=<value>; Secure; HttpOnly",
    "setcookie('theme', 'dark', time() + 3600)",
    "Cookies.set('consent', 'accepted', { expires: 365 })",
    "curl -b cookies.txt https://shop.example/",
    "Cookie,Domain,Purpose,Duration\n_ga,.shop.example,Statistics,2 years\nPHPSESSID,shop.example,Session,Session",
    "Cookie: banner overlaps button, width=100px height=200px",
    "Cookie: the banner overlaps the button; width=100px",
    "We set only one cookie: see https://shop.example/help?page=cookies",
    "Cookie: https://shop.example/help?page=cookies&lang=de-DE",
    "Third-party cookie: src=https://tracker.example/pixel.gif",
    "Third-party cookie: src=https://tracker.example/pixel.gif, size=100px",
    "Third-party cookie: tracker.js; src=https://tracker.example/pixel.gif",
    "Session cookie: input[name=email] loses its value",
    "Session cookie: [name=email] loses its value",
    "Consent cookie: [data-testid=cookie-banner-2]",
    "Reject cookie: button.reject[aria-label=Close] has no focus",
    "Reject cookie: a=button.reject[aria-label=Close]",
    "Cookies: consent=accepted, theme=dark and lang=de-DE are set before consent",
    "Cookies: max-age=31536000 is too long",
    "set_cookie: true, http_cookie: off",
    "HTTP_COOKIE=$HTTP_COOKIE",
    "RewriteCond %{HTTP_COOKIE} !consent=accepted2",
    "if ($http_cookie ~* 'lang=de-DE') { set $lang de; }",
    "no-restricted-globals: Unexpected use of 'localStorage'.",
    "localStorage.getItem('theme') is called before consent.",
    "localStorage.setItem('theme', 'dark') runs on every page view.",
    "localStorage.setItem('token', token) stores a token where scripts can read it.",
    "Avoid localStorage: it blocks the main thread. Use IndexedDB.",
    "const localStorage = { getItem: jest.fn(), setItem: jest.fn() };",
    "localStorage:\nimpact: high\nadvice: use-cookies-instead",
    '{"localStorage": {}, "sessionStorage": null}',
    # orders and customers
    '{"@type": "LocalBusiness", "name": "Shop", "email": "i@shop.example", "address": {"streetAddress": "High St 1"}}',
    '{"@type": "Product", "name": "Tee", "offers": {"price": "12.50", "priceCurrency": "EUR"}, "sku": "A-1"}',
    '{"url": "https://shop.example/", "total": 12, "items": [{"selector": "img", "title": "No text"}]}',
    '{"error": "email is required", "fields": {"email": "required", "address": "required"}}',
    "url,requests,total bytes,lines\nhttps://shop.example/,12,48213,120\nhttps://shop.example/cart,9,30112,80",
    "page,score,total\n/home,98,12\n/cart,71,40",
    "name,total,address\nHome page,12,/home\nCart,9,/cart",
    "page,street view,total\n/contact,loads 3 maps,12",
    "The form asks for name, street, total\nand phone, on three pages, twice",
    ".street, .phone, .total, .zip\n.name, .mobile, .plz, .postcode",
    ".street,.phone{color:#fff}\n.total,.zip{margin:0 4px}",
    "name,mobile,desktop,total\nPerformance,45,98,71\nSEO,100,100,100",
    "name,mobile,total\nmain bundle,1234567,2345678\nstyles,0.1234567,12",
    "name,phone,total\nHome page,390px,12\nCart,360 x 640,9",
    "name,zip,total\nbundle,12345,67890",
    "name,phone\nSupport hotline,0800 123 4567",
    "field,street,phone,required\nlabel,Street,Phone,yes",
    "session_id,requests\n1,12\n2,9",
    "session,page,seconds\nfirst-visit-1,/home,12",
    "Kunde;Betrag\n10023;12,50",
    "Eingabe;Anschrift;Betrag\nPflichtfeld;ja;nein",
    "name,total,items\nscript.js,12,4\nstyle.css,9,2",
    '{"url": "https://shop.example/", "cookies": [], "headers": [{"name": "Accept", "value": "text/html"}]}',
    '{"local_storage": {}, "session_storage": { }, "title": "Home page, 2nd"}',
    "file name,total\nscript.js,12\nstyle.css,9",
    "The form asks for customer name, total\nand phone, on three pages, twice",
    "customer_name,total\n{{ name }},{{ total }}",
    "field,label,required\nemail,E-mail,yes\naddress,Address,no\npassword,Password,yes",
    "| Field | Password |\n|---|---|\n| autocomplete | current-password |",
    '{"dependencies": {"react": "18.2.0", "@stripe/stripe-js": "3.1.0", "js-cookie": "3.0.5"}}',
    '{".btn": {"color": "#fff"}, ".btn:hover": {"color": "#000", "margin": "0 4px"}}',
    '["https://shop.example/", "https://shop.example/cart", "https://shop.example/account/password"]',
    '{"fetchTime": "2026-03-01T12:00:00.000Z", "timestamps": [1772366400, 1772366400123], "id": 20260301120000}',
    '{"audit": "uses-http2", "details": {"items": [{"url": "https://shop.example/", "total": 3}]}}',
    # numbers
    "EAN 4006381333931, GTIN 36227206271667, UPC 036000291452",
    "Order 30569309025904 cannot be opened (404).",
    "gid://shopify/ProductVariant/38520000023237",
    '{"variant_id": 38520000023237, "snowflake": 6205500000000000004}',
    "Status 6205500000000000004 deleted".replace("Status", "Post"),
    "Order number 30569309025904, tracking 00340434161094042557",
    "IBAN is missing in the imprint: DE00 0000 0000 0000 0000 00 is a placeholder.",
    "The IBAN field accepts DE89 3704 0044 0532 0130 01, whose check digits are wrong.",
    "Build DE90A12345678901234567 has letters where a German account has digits.",
    "Trace be12f4a5c6d7e8f9, commit de89370400440532013000aa",
    # hashes and texts about databases
    "Passwords are stored with bcrypt ($2y$10$…), not with MD5.",
    "$2y$10$ is the prefix of bcrypt; $argon2id$ that of Argon2.",
    "jQuery: $('#a').html(); cost is $5 or $6 a month, $1$ in LaTeX",
    "sha384-aB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zCaB3dE5gH7jK9mN1pQ4rS6tU8vW2xY0zC",
    "SELECT email, address FROM customers WHERE id = 1 is vulnerable to injection.",
]

#: Emails of customers, colleagues and systems.
MAILS: Final = [
    "Hello, I forgot my password. Can you reset it? My user name is ann.",
    "Hi team,\nthe password reset link expires after 30 minutes; is that intended?\nBest, Ann",
    "Passwort: Bitte nach der ersten Anmeldung wechseln.",
    "Password:\nForgot your password?\nSign in",
    "Please rotate the API key; the old one (starting with sk_live) leaked. Ask Bob for the new API key: he has it.",
    "Your order 100012345 has been shipped. Tracking number: 00340434161094042557.",
    "Bestellung 2026-03-0042 (EAN 4006381333931) noch nicht angekommen.",
    "Could you call me at +49 30 1234 5678 90 or 0049-151-23456789? Ann Example, High Street 1, London",
    "Ann Example <ann@shop.example>, Bob Example <bob@shop.example> and the shop team",
    "Invoice total: 12,50 EUR, due on 2026-03-31. See the attachment.",
    "Our IBAN changed. You find the new one in the customer portal.",
    "The card ending in 1111 was declined. Card number: **** **** **** 1111, expiry MM/YY.",
    "We use cookies: the consent banner sets consent=accepted for 12 months.",
    "The session is lost: after login the cookie disappears in Safari 17.4.",
    "localStorage is full in my browser, it says QuotaExceededError.",
    "Curl says: curl: (60) SSL certificate problem. I ran curl -u user:password https://shop.example as in the manual.",
    "Steps: 1. open https://shop.example/checkout?step=2 2. choose PayPal 3. see error code TOKEN_EXPIRED_401",
    "The export has columns name, email and total, but the total is empty.",
    "Name: Ann Example\nCompany: Shop Ltd\nMessage: The newsletter form shows an error.",
    "--\nAnn Example | Head of Web | Shop Ltd\nHigh Street 1, London | ann@shop.example | https://shop.example",
    "Build 6205500000000000004 failed at 2026-03-01T12:00:00Z on runner-7.",
    "Das neue Kennwort muss 12 Zeichen lang sein.",
    "Unsubscribe: https://news.shop.example/u?e=ann&list=spring-sale-2026",
    "Here is the config, without values:\nDB_HOST=localhost\nDB_PASSWORD=\nAPI_KEY=xxxx\nSECRET_KEY=<secret>",
]


def codes(value: Any) -> list[str]:
    return [problem.code for problem in find(value, frozenset())]


@pytest.mark.parametrize("text", [*FINDINGS, *MAILS])
def test_a_harmless_text_passes(text: str) -> None:
    assert codes(text) == []
    assert codes({"evidence": [{"nodes": [text, "main > img"]}]}) == []


def test_harmless_findings_pass_together() -> None:
    body = postback(issues=[issue(description=text, snippet=text, notes=[text]) for text in FINDINGS])
    assert find(body, PostbackForm().member_names()) == ()


def test_harmless_emails_pass_as_text_and_as_html() -> None:
    for text in MAILS:
        body = {"message_id": "1@shop.example", "from": "Ann Example <ann@shop.example>", "to": "in@shop.example"}
        for form in ({"text": text}, {"html": "<p>" + text.replace("\n", "<br>") + "</p>"}):
            reduced = EmailForm().reduced({**body, "subject": "Help", **form})
            assert find(inspected(reduced), EmailForm().member_names()) == (), text


def test_a_ticket_of_a_harmless_finding_is_safe() -> None:
    tickets = [{"title": "Finding", "description": text, "evidence": {"snippet": text}} for text in FINDINGS]
    assert preview_problems(tickets) == [()] * len(FINDINGS)


def test_the_corpus_has_more_than_120_harmless_texts() -> None:
    assert len(FINDINGS) + len(MAILS) > 120
