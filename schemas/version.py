"""The version of RiskRelay, named in the User-Agent of every delivery and in the package metadata."""

VERSION = "0.1.0"
#: Names this product in every outbound request.
USER_AGENT = f"RiskRelay/{VERSION}"
