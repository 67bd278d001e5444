//! An agent's status as Prometheus scrapes it (text format 0.0.4). docs/METRICS.md says what each
//! metric means.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};

use crate::status::{Latency, Status};

pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// All metrics, as text.
pub(crate) fn render(status: &Status) -> prometheus::Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(status), &mut text)?;
    Ok(text)
}

fn families(status: &Status) -> Vec<MetricFamily> {
    let Status { notifies, connections, table, .. } = status;
    let decisions = status.policies.iter().flat_map(|policy| {
        let decision = |(outcome, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("outcome", outcome)], *count)
        };
        policy.decisions.iter().map(decision).collect::<Vec<_>>()
    });
    let version = [("version", &*status.version)];
    vec![
        gauges(
            "gcra_build_info",
            "Always 1; the label says which version runs.",
            [measured(&version, 1.0)],
        ),
        gauges(
            "process_start_time_seconds",
            "When the agent was started, in seconds since 1970.",
            [measured(&[], status.start_time_seconds)],
        ),
        counters(
            "gcra_decisions_total",
            "Messages by policy and what became of them. Blocked ones were answered with blocked=true.",
            decisions,
        ),
        counters(
            "gcra_unmatched_total",
            "Messages that got no decision, because no policy is for them.",
            [counted(&[], status.unmatched)],
        ),
        counters("gcra_notifies_total", "NOTIFYs answered.", [counted(&[], notifies.answered)]),
        histogram(
            "gcra_latency_seconds",
            "From having read a NOTIFY to having written its ACK.",
            &status.latency,
        ),
        counters("gcra_ack_bytes_total", "Bytes of all ACKs.", [counted(&[], notifies.ack_bytes)]),
        counters(
            "gcra_notifies_shed_total",
            "NOTIFYs answered without a decision, because their connection was one too many.",
            [counted(&[], notifies.shed)],
        ),
        counters(
            "gcra_notifies_overdue_total",
            "NOTIFYs that were to be answered later, and were not in time.",
            [counted(&[], notifies.overdue)],
        ),
        counters(
            "gcra_notifies_reassembled_total",
            "NOTIFYs that came in several frames.",
            [counted(&[], notifies.reassembled)],
        ),
        gauges(
            "gcra_waiting",
            "NOTIFYs that wait now to be answered later.",
            [measured(&[], float(notifies.waiting))],
        ),
        counters(
            "gcra_handler_panics_total",
            "NOTIFYs answered without a decision, because of a fault in the agent.",
            [counted(&[], notifies.handler_panics)],
        ),
        gauges(
            "gcra_connections_open",
            "Connections from HAProxy that are open.",
            [measured(&[], float(connections.open))],
        ),
        counters(
            "gcra_connections_accepted_total",
            "Connections accepted, health checks among them.",
            [counted(&[], connections.accepted)],
        ),
        counters(
            "gcra_connections_total",
            "Connections ended, by how.",
            by("end", &connections.ended),
        ),
        counters(
            "gcra_protocol_errors_total",
            "Connections ended because of what came, by the status in the DISCONNECT (SPOE.txt section 3.5).",
            by("status", &connections.protocol_errors),
        ),
        counters(
            "gcra_accept_errors_total",
            "Connections that could not be accepted, such as for want of file descriptors.",
            [counted(&[], connections.accept_errors)],
        ),
        gauges(
            "gcra_buffered_bytes",
            "Bytes that all connections together keep of incomplete frames and of answers that were not read.",
            [measured(&[], float(connections.buffered_bytes))],
        ),
        gauges(
            "gcra_table_slots",
            "Slots of the shared table by what they hold, looked at every 10 s at most. Together they are its size.",
            table
                .states
                .iter()
                .map(|(state, count)| measured(&[("state", state)], float(*count)))
                .collect::<Vec<_>>(),
        ),
        counters(
            "gcra_table_evictions_total",
            "Keys that owed something and were forgotten, because the shared table was full.",
            [counted(&[], table.evictions)],
        ),
        counters(
            "gcra_table_forgiven_seconds_total",
            "What they owed: by a limit's rate this is how many requests too many may have been admitted.",
            [metric(&[], |metric| metric.set_counter(counter(table.forgiven_seconds)))],
        ),
        counters(
            "gcra_table_gave_up_total",
            "Decisions that were given up and denied, because others got ahead too often.",
            [counted(&[], table.gave_up)],
        ),
        gauges(
            "gcra_table_processes",
            "Agents that use the shared table.",
            [measured(&[], float(table.processes))],
        ),
        gauges(
            "gcra_table_detached",
            "1 while the table's name does not lead to the file that this agent uses: it was removed or replaced.",
            [measured(&[], f64::from(u8::from(table.detached)))],
        ),
        counters(
            "gcra_config_reloads_total",
            "How often the configuration was read anew, by result.",
            by("result", &status.config_reloads),
        ),
    ]
}

type Labels<'a> = [(&'a str, &'a str)];

fn counters(name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    family(name, help, MetricType::COUNTER, metrics)
}

fn gauges(name: &str, help: &str, metrics: impl IntoIterator<Item = Metric>) -> MetricFamily {
    family(name, help, MetricType::GAUGE, metrics)
}

/// Prometheus wants each bucket to have all that took less, too.
fn histogram(name: &str, help: &str, latency: &Latency) -> MetricFamily {
    let mut total = 0;
    let mut buckets = Vec::new();
    for bucket in &latency.buckets {
        total += bucket.count;
        // The one without an end is written by the encoder, from the total.
        if let Some(bound) = bucket.at_most_seconds {
            let mut cumulative = Bucket::default();
            cumulative.set_cumulative_count(total);
            cumulative.set_upper_bound(bound);
            buckets.push(cumulative);
        }
    }
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(total);
    histogram.set_sample_sum(latency.sum_seconds);
    family(
        name,
        help,
        MetricType::HISTOGRAM,
        [metric(&[], |metric| metric.set_histogram(histogram))],
    )
}

fn family(
    name: &str,
    help: &str,
    kind: MetricType,
    metrics: impl IntoIterator<Item = Metric>,
) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics.into_iter().collect());
    family
}

/// A counter for each entry, with its name as the label.
fn by(label: &str, counts: &BTreeMap<String, u64>) -> Vec<Metric> {
    counts.iter().map(|(value, count)| counted(&[(label, value)], *count)).collect()
}

fn counted(labels: &Labels<'_>, count: u64) -> Metric {
    metric(labels, |metric| metric.set_counter(counter(float(count))))
}

fn measured(labels: &Labels<'_>, value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    metric(labels, |metric| metric.set_gauge(gauge))
}

fn counter(value: f64) -> Counter {
    let mut counter = Counter::default();
    counter.set_value(value);
    counter
}

fn metric(labels: &Labels<'_>, set: impl FnOnce(&mut Metric)) -> Metric {
    let label = |(name, value): &(&str, &str)| {
        let mut label = LabelPair::default();
        label.set_name((*name).to_owned());
        label.set_value((*value).to_owned());
        label
    };
    let mut metric = Metric::from_label(labels.iter().map(label).collect());
    set(&mut metric);
    metric
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn float(count: u64) -> f64 {
    count as f64
}
