"""The chart and the manifests under deploy/kubernetes match each other, Kubernetes' schemas, and the product's settings."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from bin.processes.supervisor import STOP_GRACE_S
from schemas.settings.definitions import FILE_SUFFIX, SETTINGS, load_settings
from schemas.version import VERSION
from tests.support.factories import ENCRYPTION_KEY
from tests.support.servers.runtimes import runtime

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "deploy" / "kubernetes"
CHART: Final = FOLDER / "riskrelay"
MANIFESTS: Final = FOLDER / "manifests"
#: Where bin/runtimes installs helm, if it is not on the path.
HELM_FOLDER: Final = "/usr/local/share/riskrelay-tests/bin"
#: The oldest Kubernetes version of the chart and the newest version with published schemas.
RELEASES: Final = ("1.27", "1.37")

Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    """Return the objects of manifests by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text) if each}


PLAIN: Final = objects("\n---\n".join(path.read_text() for path in sorted(MANIFESTS.glob("*.yaml"))))
PODS: Final = {
    component: PLAIN[kind, f"riskrelay-{component}"]["spec"]["template"]["spec"]
    for component, kind in (("migrate", "Job"), ("service", "Deployment"), ("worker", "Deployment"))
}


@pytest.fixture
def helm(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The helm command."""
    monkeypatch.setenv("PATH", os.environ["PATH"] + os.pathsep + HELM_FOLDER)
    return runtime("helm")


def rendered(helm: Path, *values: str) -> Objects:
    """Return the objects that the chart renders with values such as `worker.replicas=3`."""
    options = [option for value in values for option in ("--set", value)]
    command: list[str | Path] = [helm, "template", "riskrelay", CHART, "--kube-version", RELEASES[0], *options]
    return objects(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def container(component: str) -> dict[str, Any]:
    [found] = PODS[component]["containers"]
    return dict(found)


def environment(component: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(component)["env"]}


def test_helm_lint_accepts_the_chart(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_manifests_equal_the_rendered_chart(helm: Path, tmp_path: Path) -> None:
    subprocess.run([ROOT / "bin" / "render-manifests", tmp_path], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in MANIFESTS.iterdir()
    }


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", PLAIN, ids="/".join)
def test_kubernetes_accepts_every_manifest(name: tuple[str, str], release: str) -> None:
    kubernetes_validate.validate(PLAIN[name], release, strict=True)


def test_kubernetes_accepts_the_chart_rendered_with_other_values(helm: Path) -> None:
    made = rendered(
        helm,
        "image.pullSecrets[0].name=registry",
        "settings.LOG_LEVEL=debug",
        "networkPolicy.extraEgress[0].ports[0].port=587",
    )
    for each in made.values():
        kubernetes_validate.validate(each, RELEASES[0], strict=True)
    assert made["Job", "riskrelay-migrate"]["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert made["Deployment", "riskrelay-worker"]["spec"]["replicas"] == 2
    assert ("HorizontalPodAutoscaler", "riskrelay-worker") not in made
    mail = {"ports": [{"port": 587}]}
    assert [mail in made["NetworkPolicy", f"riskrelay-{each}"]["spec"]["egress"] for each in PODS] == [False, True, True]
    assert not any(kind == "NetworkPolicy" for kind, _ in rendered(helm, "networkPolicy.enabled=false"))


def test_numbers_in_a_values_file_are_rendered_as_written(helm: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("settings: {MAX_BODY_BYTES: 2097152, DNS_TIMEOUT_S: 2.5, REDIS_EMBEDDED: false, LOG_LEVEL: debug}")
    command: list[str | Path] = [helm, "template", "riskrelay", CHART, "--kube-version", RELEASES[0], "--values", values]
    made = objects(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    [service] = made["Deployment", "riskrelay-service"]["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each["value"] for each in service["env"] if "value" in each}
    written = {"MAX_BODY_BYTES": "2097152", "DNS_TIMEOUT_S": "2.5", "REDIS_EMBEDDED": "false", "LOG_LEVEL": "debug"}
    assert {name: env[name] for name in written} == written


def test_an_unknown_field_is_detected() -> None:
    broken = {**PLAIN["Service", "riskrelay"], "spek": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, RELEASES[0], strict=True)


@pytest.mark.parametrize("component", PODS)
def test_the_environment_of_every_pod_is_valid(component: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {setting.name for setting in SETTINGS if setting.is_secret}
    for name in (each.name for each in SETTINGS):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name + FILE_SUFFIX, raising=False)
    contents = {"DATABASE_URL": "postgresql://db/x", "REDIS_URL": "redis://r:6379/0", "ENCRYPTION_KEYS": ENCRYPTION_KEY}
    for name, value in environment(component).items():
        setting = name.removesuffix(FILE_SUFFIX)
        assert setting in {each.name for each in SETTINGS}
        # No secret is in the environment.
        assert (setting in secrets) == name.endswith(FILE_SUFFIX)
        if setting != name:
            assert value == f"/run/secrets/riskrelay/{setting}"
            (tmp_path / setting).write_text(contents.get(setting, f"{setting:x<40}"))
        monkeypatch.setenv(name, value.replace("/run/secrets/riskrelay", str(tmp_path)))
    settings = load_settings(tmp_path / "none")
    assert not settings.redis_embedded
    assert settings.public_base_url.startswith("https://")


@pytest.mark.parametrize("component", PODS)
def test_every_pod_is_confined(component: str) -> None:
    pod = PODS[component]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container(component)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"requests", "limits"} == container(component)["resources"].keys()


def test_the_user_and_the_version_are_those_of_the_image_and_the_product() -> None:
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert "\nUSER 10001:10001\n" in dockerfile
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
    assert {container(component)["image"] for component in PODS} == {f"riskrelay:{VERSION}"}


def test_probes_request_paths_and_ports_that_the_processes_serve() -> None:
    service, worker = container("service"), container("worker")
    assert [service[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")] == ["/healthz", "/readyz"]
    assert "BIND=0.0.0.0:8000" in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert service["ports"] == [{"name": "http", "containerPort": 8000}]
    assert worker["readinessProbe"]["httpGet"] == {"path": "/metrics", "port": "metrics"}
    [port] = worker["ports"]
    assert environment("worker")["WORKER_METRICS_BIND"] == f"0.0.0.0:{port['containerPort']}"


def test_the_grace_period_of_pods_exceeds_their_longest_stop(tmp_path: Path) -> None:
    config = (ROOT / "service" / "server" / "gunicorn_config.py").read_text()
    [graceful_s] = re.findall(r"^graceful_timeout = (\d+)$", config, re.MULTILINE)
    [_, paused_s] = container("service")["lifecycle"]["preStop"]["exec"]["command"]
    assert PODS["service"]["terminationGracePeriodSeconds"] > int(graceful_s) + int(paused_s)
    longest_s = load_settings(tmp_path / "none").delivery_timeout_s + STOP_GRACE_S
    assert PODS["worker"]["terminationGracePeriodSeconds"] > longest_s


def test_only_workers_reach_other_hosts() -> None:
    policies = {component: PLAIN["NetworkPolicy", f"riskrelay-{component}"] for component in PODS}
    ports = {
        component: {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
        for component, policy in policies.items()
    }
    assert ports == {"migrate": {53, 5432}, "service": {53, 5432, 6379}, "worker": {53, 5432, 6379, 80, 443, 8443}}
    *_, targets = policies["worker"]["spec"]["egress"]
    assert [block["ipBlock"]["except"][0] for block in targets["to"]] == ["169.254.0.0/16", "fd00:ec2::254/128"]


def test_workers_scale_by_a_documented_metric() -> None:
    [metric] = PLAIN["HorizontalPodAutoscaler", "riskrelay-worker"]["spec"]["metrics"]
    assert f"| `{metric['external']['metric']['name']}` | gauge |" in (ROOT / "docs" / "monitoring.md").read_text()
