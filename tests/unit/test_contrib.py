"""What contrib/ and docs/opentelemetry.md name is what memexport exports, and the alerts do what they say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from promql import read_by
from readme_tables import prometheus_label, prometheus_name

from memexport.exporters._otel_metrics import CATEGORY, DEVICE, METRICS, MODULE, PHASE, Instrument

CONTRIB = Path(__file__).parents[2] / "contrib"
DASHBOARD = json.loads((CONTRIB / "grafana-dashboard.json").read_text(encoding="utf-8"))
PAGE = (CONTRIB.parent / "docs" / "opentelemetry.md").read_text(encoding="utf-8")
ALERTS, ALERT_TESTS, COLLECTOR, PROMETHEUS = (
    yaml.safe_load((CONTRIB / name).read_text(encoding="utf-8"))
    for name in ("alerts.yml", "alerts_test.yml", "collector.yaml", "prometheus.yml")
)
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
# Every series has them: what Prometheus makes of service.name and service.instance.id, and our resource.
OF_PROCESS = {"job", "instance", "host_name", "memexport_rank", "memexport_world_size", "process_pid"}
# vmrange is what VictoriaMetrics has instead of le.
OF_BUCKETS = {"le", "vmrange"}
# An attribute of a resource or a series that stands for many values, in what is evaluated below.
SAMPLE_LABELS = {"job": "train", "memexport_rank": "0", "host_name": "a", "instance": "i", "le": "1"}
PROMTOOL, OTELCOL = shutil.which("promtool"), shutil.which("otelcol") or shutil.which("otelcol-contrib")


def exported():
    """Every name that Prometheus knows, and its labels."""
    names = {}
    for metric in METRICS:
        name = prometheus_name(metric)
        labels = OF_PROCESS | {prometheus_label(attribute) for attribute in metric.attributes}
        # Exponential buckets are one native histogram, of the name itself.
        names[name] = labels
        if metric.instrument is Instrument.HISTOGRAM:
            names |= {f"{name}_count": labels, f"{name}_sum": labels, f"{name}_bucket": labels | OF_BUCKETS}
    return names


def recorded():
    """The names that the recording rules add, and their labels."""
    return {rule["record"]: read_by(rule["expr"]).grouping for rule in RULES if "record" in rule}


KNOWN = exported() | recorded()


def panels():
    """The panels that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def dashboard_expressions():
    """All of them, with Grafana's variables replaced by what it would put there."""
    for panel in panels():
        for target in panel["targets"]:
            text = re.sub(r'"\$(job|rank|device)"', '".*"', target["expr"]).replace("$__range", "1h")
            assert "$" not in text, f"{text} has a variable that nobody replaces"
            yield panel["title"], text


def queries():
    """What the variables of the dashboard ask for: a selector and a label."""
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((?P<selector>.*), (?P<label>\w+)\)", variable["definition"])
            assert match is not None, variable["definition"]
            assert variable["query"]["query"] == variable["definition"]
            yield variable["name"], re.sub(r"\$\w+", ".*", match["selector"]), match["label"]


EXPRESSIONS = [
    *dashboard_expressions(),
    *((rule.get("alert", "rule"), rule["expr"]) for rule in RULES),
    *(("docs", code) for code in re.findall(r"^```promql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)),
]


def wrong_in(read):
    """What an expression reads that nobody exports."""
    wrong = [f"{name} is not exported" for name in read.labels if name not in KNOWN]
    known = [(name, labels) for name, labels in read.labels.items() if name in KNOWN]
    wrong += [f"{name} has no {label}" for name, labels in known for label in labels - KNOWN[name]]
    anywhere = set().union(*(KNOWN[name] for name, _ in known)) if known else set()
    return wrong + [f"nothing has {label}" for label in read.grouping - anywhere - OF_BUCKETS]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_every_expression_reads_only_what_is_exported(where, expression):
    read = read_by(expression)
    assert read.labels
    assert wrong_in(read) == []


@pytest.mark.parametrize(("name", "selector", "label"), [*queries()])
def test_every_variable_asks_for_a_label_that_is_exported(name, selector, label):
    read = read_by(selector)
    assert wrong_in(read) == []
    assert all(label in KNOWN[metric] for metric in read.labels)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum(memexport_memory_alocated_bytes)", "memexport_memory_alocated_bytes is not exported"),
        ("memexport_operators", "memexport_operators is not exported"),
        ('memexport_ooms_total{memexport_module="a"}', "memexport_ooms_total has no memexport_module"),
        ("sum by (rank) (memexport_ooms_total)", "nothing has rank"),
        ("a{b='c'} + on (d) group_left (e) f", "a is not exported"),
    ],
)
def test_a_name_that_is_not_exported_is_found(expression, wrong):
    assert wrong in wrong_in(read_by(expression))


@pytest.mark.parametrize("expression", ["sum(a", "a)", "(a}", "sum by (b (a)", "a ? b", "{b='c'}", 'a{b="c}'])
def test_an_expression_that_is_none_is_found(expression):
    with pytest.raises(ValueError, match=r"missing|closes|not PromQL|without"):
        read_by(expression)


def test_what_an_expression_reads_is_told_from_what_it_does():
    read = read_by('max by (a, b) (rate(x{c=~"d{", e!="\\""}[5m] offset 1h)) or (y unless z > 1e9) # f')
    assert read.labels == {"x": {"c", "e"}, "y": set(), "z": set()}
    assert (read.grouping, read.functions) == ({"a", "b"}, {"max", "rate"})


def test_prometheus_names_are_those_that_the_specification_gives():
    names = {metric.name: prometheus_name(metric) for metric in METRICS}
    assert names["memexport.memory.allocated"] == "memexport_memory_allocated_bytes"
    assert names["memexport.allocation.retries"] == "memexport_allocation_retries_total"
    assert names["memexport.step.duration"] == "memexport_step_duration_seconds"
    assert names["hw.gpu.memory.limit"] == "hw_gpu_memory_limit_bytes"
    assert len(set(names.values())) == len(METRICS)


def test_the_page_explains_every_attribute_under_the_label_that_it_becomes():
    explained = PAGE[PAGE.index("## Attributes") :]
    for key in {key for metric in METRICS for key in metric.attributes}:
        assert f"`{key}`" in explained
        assert f"`{prometheus_label(key)}`" in explained
    assert all(f"`{label}`" in explained for label in OF_PROCESS)


def test_every_metric_is_on_the_dashboard():
    shown = set().union(*(read_by(expression).labels for _, expression in dashboard_expressions()))
    missing = {prometheus_name(metric) for metric in METRICS} - shown
    assert missing == set()


def test_the_dashboard_tells_by_every_attribute_that_a_person_would_ask_for():
    grouping = set().union(*(read_by(expression).grouping for _, expression in dashboard_expressions()))
    assert {prometheus_label(key) for key in (CATEGORY, MODULE, PHASE, DEVICE)} <= grouping
    assert [name for name, _, _ in queries()] == ["job", "rank", "device"]


def test_every_panel_has_an_id_a_title_a_unit_and_says_what_it_shows():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith((".", "?"))
        assert panel["fieldConfig"]["defaults"]["unit"] in ("bytes", "s", "short", "percentunit", "ops")
        assert [target["refId"] for target in panel["targets"]] == [*"ABC"][: len(panel["targets"])]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_a_panel_shows_bytes_exactly_if_it_reads_bytes():
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            read = read_by(re.sub(r"\$__range", "1h", target["expr"]))
            reads_bytes = {name.removesuffix("_bucket").endswith("_bytes") for name in read.labels}
            is_ratio = "/" in target["expr"]
            assert reads_bytes == {unit == "bytes" or is_ratio}, target["expr"]
            assert (unit == "percentunit") == is_ratio, target["expr"]


def test_thresholds_rise_from_what_is_always_true():
    for panel in panels():
        values = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert values[0] is None
        assert values[1:] == sorted(values[1:])


def test_no_panel_lies_over_another_or_beyond_the_edge():
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_legends_and_annotations_name_labels_that_are_there():
    for panel in panels():
        for target in panel["targets"]:
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= read_by(target["expr"].replace("$__range", "1h")).grouping, target["expr"]
    for rule in RULES:
        read = read_by(rule["expr"])
        labels = read.grouping or set().union(*(KNOWN[name] for name in read.labels))
        texts = " ".join(rule.get("annotations", {}).values())
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels, rule


def test_every_alert_is_tested_and_says_what_it_means():
    alerts = [rule for rule in RULES if "alert" in rule]
    tested = {case["alertname"] for test in ALERT_TESTS["tests"] for case in test["alert_rule_test"]}
    assert {alert["alert"] for alert in alerts} == tested
    for alert in alerts:
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert {"summary", "description"} <= alert["annotations"].keys()


def test_the_series_that_the_alerts_are_tested_with_are_exported():
    for test in ALERT_TESTS["tests"]:
        for series in test["input_series"]:
            assert wrong_in(read_by(series["series"])) == []


def test_the_collector_uses_only_what_it_defines_and_says_where_it_listens():
    for pipeline in COLLECTOR["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= COLLECTOR[kind].keys()
        # The Collector's advice: to refuse before anything is kept.
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
    protocols = COLLECTOR["receivers"]["otlp"]["protocols"]
    assert {name: at["endpoint"] for name, at in protocols.items()} == {
        "grpc": "127.0.0.1:4317",
        "http": "127.0.0.1:4318",
    }


def test_prometheus_scrapes_the_collector_where_it_exports():
    exporter = COLLECTOR["exporters"]["prometheus"]
    assert exporter["resource_to_telemetry_conversion"] == {"enabled": True}
    (scrape,) = PROMETHEUS["scrape_configs"]
    (target,) = scrape["static_configs"][0]["targets"]
    assert target.rpartition(":")[2] == exporter["endpoint"].rpartition(":")[2]
    # Else job and instance would be the collector's.
    assert scrape["honor_labels"] is True


def test_the_sections_of_prometheus_to_take_in_are_yaml():
    text = (CONTRIB / "prometheus.yml").read_text(encoding="utf-8")
    commented = text[text.index("# otlp:") :]
    sections = yaml.safe_load(re.sub(r"^# ?", "", commented, flags=re.MULTILINE))
    promoted = {prometheus_label(name) for name in sections["otlp"]["promote_resource_attributes"]}
    assert promoted <= OF_PROCESS
    assert {"host_name", "memexport_rank"} <= promoted
    assert "out_of_order_time_window" in sections["storage"]["tsdb"]


@pytest.mark.skipif(
    OTELCOL is None, reason="no otelcol on the PATH: its configuration is parsed, not validated"
)
def test_the_collector_takes_its_configuration():
    done = subprocess.run(
        [OTELCOL, "validate", "--config", CONTRIB / "collector.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on the PATH: expressions are read, not evaluated"
)


def promtool(*arguments):
    """Run it; it must find nothing wrong."""
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_prometheus_takes_its_files_and_the_alerts_fire_as_tested(arguments):
    *command, name = arguments
    promtool(*command, CONTRIB / name)


def simulated_series():
    """A series of everything that is exported, growing."""
    for metric in METRICS:
        name = prometheus_name(metric)
        labels = SAMPLE_LABELS | {prometheus_label(key): "cuda:0" for key in metric.attributes}
        if metric.instrument is not Instrument.HISTOGRAM:
            del labels["le"]
            yield name, labels
            continue
        for bound in ("1", "2", "+Inf"):
            yield f"{name}_bucket", {**labels, "le": bound}


@needs_promtool
def test_every_panel_shows_something_of_a_run(tmp_path):
    text = ({"series": _selector(name, labels), "values": "1+1x70"} for name, labels in simulated_series())
    # An alert for each expression: it fires if the expression has a value.
    rules = [
        {"alert": f"E{number}", "expr": f"count({expression}) > 0"}
        for number, (_, expression) in enumerate(dashboard_expressions())
    ]
    cases = [
        {"alertname": rule["alert"], "eval_time": "1h", "exp_alerts": [{"exp_labels": {}}]} for rule in rules
    ]
    test = {"interval": "1m", "input_series": list(text), "alert_rule_test": cases}
    files = {
        "rules.json": {"groups": [{"name": "panels", "rules": rules}]},
        "test.json": {"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))  # which is YAML too
    promtool("test", "rules", tmp_path / "test.json")


def _selector(name, labels):
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in labels.items()) + "}"
