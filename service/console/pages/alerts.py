"""`/console/alerts`: open alerts, with advice and a button to silence each; then recovered alerts."""

from collections.abc import Mapping
from typing import Any

import falcon

from schemas.alerts.alert import Alert, AlertText, describe
from service.console.form_fields import Fields
from service.console.layout import CONSOLE, Action, ConsolePage, Redirect, list_content
from service.console.sessions import ConsoleUser
from service.http.paging import read_page
from service.operations import alerts
from storage.db import identifiers


class AlertsPage(ConsolePage):
    """Lists alerts: the open ones on the first page, then the recovered ones."""

    path = f"{CONSOLE}/alerts"
    template = "alerts.html"

    def content(self, req: falcon.Request, user: ConsoleUser, **_ids: str) -> Mapping[str, Any]:
        """Return the alerts with their texts."""
        page = read_page(req, identifiers.ALERT)
        found = alerts.list_recovered(user.principal, page.fetch_limit, page.before, is_operator=user.is_operator)
        listed = list_content(page, found)
        opened = [] if page.before else alerts.list_open(user.principal, is_operator=user.is_operator)
        shown = [(alert, _text(alert, user)) for alert in (*opened, *listed["shown"])]
        return {**listed, "shown": shown, "channels": [each.value for each in self._settings.alert_channels]}


def _text(alert: Alert, user: ConsoleUser) -> AlertText:
    """Return the text of an alert; without a link for another account's alert, because the operator has no page for it."""
    text = describe(alert)
    return text if alert.account_id in {None, user.account_id} else text._replace(path="")


class AcknowledgeAlert(Action):
    """Silences an alert until it occurs again."""

    path = f"{AlertsPage.path}/{{alert_id}}/acknowledge"

    def act(self, user: ConsoleUser, form: Fields, **ids: str) -> Redirect:
        """Acknowledge the alert. Raises NotFound."""
        alerts.acknowledge(ids["alert_id"], user.principal, is_operator=user.is_operator)
        return Redirect("/alerts", "alert_acknowledged")
