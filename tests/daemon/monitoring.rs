//! The dashboard, the alerts and the page about metrics: they name what an agent exports, and the
//! alerts fire when they should.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gcra_admin::family::Family;
use gcra_admin::metrics::families;
use serde_json::Value as Json;

use crate::support::{admin, directory, find_promtool, needs, promtool};

/// Metrics of HAProxy's own exporter that alerts use.
const HAPROXYS: [&str; 6] = [
    "haproxy_frontend_http_requests_total",
    "haproxy_backend_active_servers",
    "haproxy_backend_client_aborts_total",
    "haproxy_backend_connection_errors_total",
    "haproxy_backend_response_errors_total",
    "haproxy_sticktable_used",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The names of all metrics, and those of their series.
fn names() -> (BTreeSet<String>, BTreeSet<String>) {
    let series = |family: Family| {
        match family.kind {
            "histogram" => vec!["_bucket", "_sum", "_count"],
            _ => vec![""],
        }
        .into_iter()
        .map(move |ending| format!("{}{ending}", family.name))
    };
    let names = families().into_iter().map(|family| family.name.to_owned()).collect();
    (names, families().into_iter().flat_map(series).collect())
}

/// The metrics that an agent with a policy of each kind exports.
fn exported(more: &str) -> BTreeSet<String> {
    let directory = directory();
    let file = directory.path().join("gcra-spoa.toml");
    let settled = "[policy.login]\nlimits = \"3/m\"\nkey = [\"ip\"]\nsettle = \"failed\"\n\
                   [policy.plan]\nlimits = { arg = \"plan\", default = \"1/s\", most = \"9/s\" }\n\
                   key = [\"ip\"]\nobserve = \"1/s\"\n";
    let text = format!("{settled}[policy.api]\nlimits = \"10/h\"\n{more}");
    fs::write(&file, text).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let (_agent, address) = admin::start(&directory.path().join("table"), &args);
    let body = admin::get(&address, "/metrics").body;
    let types = body.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// The names in a text that look like metrics of an agent.
fn metric_names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("gcra_") || *word == "process_start_time_seconds")
        .map(ToOwned::to_owned)
        .collect()
}

/// The metrics that a text names, where a series of a histogram counts for it.
fn families_in(text: &str, families: &BTreeSet<String>) -> BTreeSet<String> {
    let family = |name: String| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|ending| name.strip_suffix(ending).filter(|name| families.contains(*name)))
            .map_or(name.clone(), ToOwned::to_owned)
    };
    metric_names(text).into_iter().map(family).collect()
}

fn run_promtool(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(find_promtool().unwrap());
    command.args(args).arg(file.file_name().unwrap()).current_dir(file.parent().unwrap());
    command.output().unwrap()
}

fn assert_promtool_accepts(args: &[&str], file: &Path) {
    let output = run_promtool(args, file);
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}", said.concat());
}

fn alerts() -> PathBuf {
    root().join("deploy/prometheus/alerts.yml")
}

#[test]
fn each_alert_fires_when_it_should_and_not_otherwise() {
    needs!(promtool());
    assert_promtool_accepts(&["check", "rules"], &alerts());
    let tests = alerts().with_file_name("alerts_test.yml");
    assert_promtool_accepts(&["test", "rules"], &tests);
    let tests = fs::read_to_string(tests).unwrap();
    for name in read("deploy/prometheus/alerts.yml").lines().filter_map(alert_name) {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tried");
    }
}

fn alert_name(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("- alert: ")
}

#[test]
fn each_alert_says_what_to_do_and_where_to_read_on() {
    let text = read("deploy/prometheus/alerts.yml");
    let anchors: BTreeSet<_> = read("docs/METRICS.md")
        .lines()
        .filter_map(|line| {
            line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        })
        .map(|heading| format!("docs/METRICS.md#{}", heading.to_lowercase().replace(' ', "-")))
        .collect();
    let mut rules: Vec<(&str, BTreeMap<&str, &str>)> = Vec::new();
    for line in text.lines() {
        if let Some(name) = alert_name(line) {
            rules.push((name, BTreeMap::new()));
        } else if let Some((key, value)) = line.trim_start().split_once(':')
            && let Some((_, rule)) = rules.last_mut()
        {
            rule.insert(key, value.trim());
        }
    }
    assert!(rules.len() > 20, "{rules:?}");
    for (name, rule) in rules {
        for key in ["expr", "labels", "summary", "description"] {
            assert!(rule.contains_key(key), "{name} has no {key}");
        }
        let severity = rule["labels"];
        assert!(["{severity: page}", "{severity: notice}"].contains(&severity), "{name}");
        assert!(anchors.contains(rule["runbook_url"]), "{name}: {anchors:?}");
    }
}

#[test]
fn the_alerts_and_the_documents_name_metrics_that_exist() {
    let (families, series) = names();
    let alerts = read("deploy/prometheus/alerts.yml");
    let named = metric_names(&alerts);
    assert!(named.is_subset(&series), "{:?}", named.difference(&series));
    assert!(HAPROXYS.iter().all(|name| alerts.contains(name)));

    // Every metric is explained, and nothing else is.
    let explained = families_in(&read("docs/METRICS.md"), &families);
    assert_eq!(explained, families);
}

#[test]
fn the_metrics_of_a_store_are_there_only_with_a_store() {
    // They are there although nothing listens on this port.
    let with = exported("shared = true\n[store]\nurl = \"redis://127.0.0.1:1\"\n");
    let without = exported("");
    assert_eq!(with, names().0);
    let of_store =
        |name: &&String| name.starts_with("gcra_store_") || name.starts_with("gcra_lease_");
    assert_eq!(without.iter().filter(of_store).count(), 0, "{without:?}");
    assert_eq!(
        with.iter().filter(|name| !of_store(name)).cloned().collect::<BTreeSet<_>>(),
        without
    );
}

#[test]
fn the_dashboard_shows_every_metric() {
    let (families, series) = names();
    let text = read("deploy/grafana/gcra-spoa.json");
    let named = metric_names(&text);
    assert!(named.is_subset(&series), "{:?}", named.difference(&series));
    assert_eq!(families_in(&text, &families), families);
}

/// As far as that can be known without Grafana.
#[test]
fn the_dashboard_is_one_that_grafana_can_load() {
    let dashboard: Json = serde_json::from_str(&read("deploy/grafana/gcra-spoa.json")).unwrap();
    for key in ["title", "uid", "schemaVersion", "time", "refresh"] {
        assert!(!dashboard[key].is_null(), "{key}");
    }
    let variables: BTreeSet<_> = list(&dashboard["templating"]["list"])
        .iter()
        .map(|variable| variable["name"].as_str().unwrap().to_owned())
        // Grafana has this one in any case.
        .chain(["__rate_interval".to_owned()])
        .collect();
    let (mut ids, mut titles, mut taken) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut expressions = Vec::new();
    for panel in list(&dashboard["panels"]) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another panel");
        assert!(titles.insert((title, panel["type"].as_str().unwrap())), "{title} is there twice");
        let position = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        let (x, y, w, h) = (position("x"), position("y"), position("w"), position("h"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title} is not on the grid");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title} overlaps another panel");
        }
        if panel["type"] == "row" {
            continue;
        }
        assert!(panel["description"].is_string(), "{title} is not explained");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let mut names = BTreeSet::new();
        let targets = list(&panel["targets"]);
        assert!(!targets.is_empty(), "{title} shows nothing");
        for target in targets {
            assert!(names.insert(target["refId"].as_str().unwrap()), "{title}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            let expression = target["expr"].as_str().unwrap();
            let used: BTreeSet<_> = variables_in(expression).collect();
            assert!(used.is_subset(&variables), "{title}: {used:?}");
            assert!(used.contains("job") && used.contains("instance"), "{title}: {used:?}");
            expressions.push(expression.to_owned());
        }
    }
    for annotation in list(&dashboard["annotations"]["list"]) {
        expressions.push(annotation["expr"].as_str().unwrap().to_owned());
    }

    needs!(promtool());
    let directory = directory();
    let rules = directory.path().join("rules.yml");
    let mut text = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, expression) in expressions.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m").replace('$', "");
        text += &format!("      - record: panel:{number}\n        expr: '{expression}'\n");
    }
    fs::write(&rules, text).unwrap();
    assert_promtool_accepts(&["check", "rules"], &rules);
}

fn list(json: &Json) -> &[Json] {
    json.as_array().map_or(&[], Vec::as_slice)
}

/// The names behind each `$`.
fn variables_in(text: &str) -> impl Iterator<Item = String> {
    text.split('$').skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        rest[..end.unwrap_or(rest.len())].to_owned()
    })
}
