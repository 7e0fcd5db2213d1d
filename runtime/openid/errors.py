"""Why a sign-in at an issuer fails. Apart from the issuer, whose packages take 7 MB and few installations need."""


class SignInFailure(Exception):
    """A sign-in failed; `reason` is a word for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IssuerUnavailable(SignInFailure):
    """The issuer did not answer as it must."""


class TokenRefused(SignInFailure):
    """An ID token, or the response that carried it, failed a check."""
