"""Why a sign-in at an issuer fails. Separate from `issuer`, whose packages take 7 MB and few installations need."""


class SignInFailure(Exception):
    """A sign-in failed; `reason` is a word for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IssuerUnavailable(SignInFailure):
    """The issuer did not respond, or its response is not valid."""


class TokenRefused(SignInFailure):
    """An ID token, or the response that carried it, failed a check."""
