"""The TLS settings of connections to receivers, and to servers of the operator: the mail server, the issuer of sign-ins."""

import ssl


def client_context(authorities: str, bundle: str | None = None) -> ssl.SSLContext:
    """Return a context of TLS 1.2 or later; it verifies servers by the usual authorities and by `authorities` in PEM.

    The file `bundle` replaces the usual authorities.
    """
    # Imported here: few installations have such a server, and requests takes 3 MB.
    from requests.utils import DEFAULT_CA_BUNDLE_PATH  # noqa: PLC0415 - see above

    # Not create_default_context: it writes the keys of each session to the file in SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(bundle or DEFAULT_CA_BUNDLE_PATH)
    if authorities:
        context.load_verify_locations(cadata=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
