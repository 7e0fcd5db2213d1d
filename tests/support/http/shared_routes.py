"""A router that compiles the paths of the service once for all applications that the tests create."""

from functools import cache, partial
from typing import Any

from falcon.inspect import RouteInfo, RouteMethodInfo, register_router
from falcon.routing import CompiledRouter, map_http_methods, set_default_responders

Found = tuple[Any, dict[str, Any], dict[str, Any], str | None]


class SharedRoutes:
    """A router for Falcon applications. They share the compiled routes; each application has its own resources.

    Adding 120 routes to a router and compiling it takes a third of a test's time.
    """

    def __init__(self) -> None:
        self.resources: dict[str, object] = {}
        self._responders: dict[str, dict[str, Any]] = {}
        self._compiled: CompiledRouter | None = None

    def add_route(self, uri_template: str, resource: object, **_: object) -> None:
        """Serve a path with this resource."""
        self.resources[uri_template] = resource
        self._compiled = None

    def find(self, uri: str, req: object = None) -> Found | None:
        """Return the resource of a path, its responders by method, its parameters and its template, or None."""
        self._compiled = self._compiled or _compiled(tuple(self.resources))
        found = self._compiled.find(uri)
        if found is None:
            return None
        parameters, template = found[2:]
        assert template is not None
        return self.resources[template], self._responders_at(template), parameters, template

    def _responders_at(self, template: str) -> dict[str, Any]:
        if template not in self._responders:
            responders = map_http_methods(self.resources[template])
            set_default_responders(responders)
            self._responders[template] = responders
        return self._responders[template]


@cache
def _compiled(templates: tuple[str, ...]) -> CompiledRouter:
    router = CompiledRouter()
    for template in templates:
        router.add_route(template, object())
    return router


@register_router(SharedRoutes)
def _inspected(routes: SharedRoutes) -> list[RouteInfo]:
    """Return the routes as Falcon does, without their source lines: finding those takes a second."""
    return [
        RouteInfo(path, type(resource).__name__, "", _inspected_methods(routes._responders_at(path)))
        for path, resource in routes.resources.items()
    ]


def _inspected_methods(responders: dict[str, Any]) -> list[RouteMethodInfo]:
    methods = []
    for method, responder in responders.items():
        function = responder.func if isinstance(responder, partial) else responder
        is_internal = function.__module__.startswith("falcon.")
        methods.append(RouteMethodInfo(method, "", function.__name__, is_internal))
    return methods
