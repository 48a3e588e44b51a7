"""Everything that names a metric names one that exists, with the labels it has."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from headwater.metrics.exposition import FAMILIES, PREFIX
from tests.support.pages import ROOT

MONITORING = ROOT / "docs" / "assets" / "monitoring"
DASHBOARD, ALERTS = MONITORING / "grafana-dashboard.json", MONITORING / "alerts.yml"


def named_in(text: str) -> set[str]:
    """Return the metrics that a text names, without what belongs to a histogram."""
    found = set(re.findall(rf"\b{PREFIX}([a-z_]+)", text))
    return {re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda file: file.name)
def test_a_file_for_monitoring_names_only_metrics_that_exist(file: Path) -> None:
    text = file.read_text("utf-8")
    assert named_in(text)
    assert named_in(text) <= set(FAMILIES)


def test_every_query_of_the_dashboard_uses_labels_that_its_metric_has() -> None:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            known = {"le"}.union(*(FAMILIES[name].labels for name in named_in(target["expr"])))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            used |= set(re.findall(r"(\w+)=~?\"", target["expr"]))
            for names in re.findall(r"by \(([^)]*)\)", target["expr"]):
                used |= set(names.split(", "))
            assert used <= known, panel["title"]


def test_no_metric_has_a_label_that_prometheus_gives_to_what_it_scrapes() -> None:
    for family in FAMILIES.values():
        assert not {"instance", "job"}.intersection(family.labels), family.name


def test_every_alert_shows_labels_that_its_metric_has() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        known = {"instance"}.union(*(FAMILIES[name].labels for name in named_in(rule["expr"])))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= known, rule["alert"]


def test_what_every_server_of_a_store_says_is_not_added_up() -> None:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            assert not ("$store" in target["expr"] and "sum" in target["expr"]), panel["title"]


def test_every_alert_has_an_expression_a_severity_and_a_cure() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["expr"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_the_reference_lists_every_metric_as_it_is() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    rows = [
        f"| `{family.full_name}` | {family.kind} "
        f"| {', '.join(f'`{label}`' for label in family.labels) or '–'} | {family.help} |"
        for family in FAMILIES.values()
    ]
    assert [row for row in rows if row not in text] == []
    assert named_in(text) <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_counter_is_a_total_and_a_help_is_a_sentence(family: tuple[str, ...]) -> None:
    name, kind, _, said = family
    assert name.endswith("_total") == (kind == "counter")
    assert said.endswith(".")
