//! An agent's status as Prometheus scrapes it (text format 0.0.4). docs/METRICS.md says what each
//! metric means.

use std::collections::BTreeMap;

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder as _, TextEncoder};

use crate::status::{Connections, Latency, Status, TableStatus};
use crate::store_status::{LeasesStatus, StoreStatus};

pub(crate) const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// All metrics, as text.
pub(crate) fn render(status: &Status) -> prometheus::Result<Vec<u8>> {
    let mut text = Vec::new();
    TextEncoder::new().encode(&families(status), &mut text)?;
    Ok(text)
}

fn families(status: &Status) -> Vec<MetricFamily> {
    let parts = [
        of_process(status),
        of_notifies(status),
        of_connections(&status.connections),
        of_table(&status.table),
        status.store.as_ref().map(|store| of_store(store, status)).unwrap_or_default(),
        status.store.as_ref().map(|store| of_leases(&store.leases)).unwrap_or_default(),
    ];
    // The encoder takes no family without a metric.
    parts.into_iter().flatten().filter(|family| !family.get_metric().is_empty()).collect()
}

fn of_process(status: &Status) -> Vec<MetricFamily> {
    let version = [("version", &*status.version)];
    let decisions = status.policies.iter().flat_map(|policy| {
        let decision = |(outcome, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("outcome", outcome)], *count)
        };
        policy.decisions.iter().map(decision).collect::<Vec<_>>()
    });
    let newly_blocked = status.policies.iter().filter_map(|policy| {
        let count = policy.newly_blocked?;
        Some(counted(&[("policy", &policy.name)], count))
    });
    let limit_args = status.policies.iter().flat_map(|policy| {
        let said = |(value, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("value", value)], *count)
        };
        policy.limit_args.iter().map(said).collect::<Vec<_>>()
    });
    let delayed =
        status.policies.iter().map(|policy| counted(&[("policy", &policy.name)], policy.delayed));
    let settled = status.policies.iter().flat_map(|policy| {
        let settled = |(outcome, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("outcome", outcome)], *count)
        };
        policy.settled.iter().map(settled).collect::<Vec<_>>()
    });
    let settled_cells = status.policies.iter().flat_map(|policy| {
        let cells = |(kind, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("kind", kind)], *count)
        };
        policy.settled_cells.iter().map(cells).collect::<Vec<_>>()
    });
    vec![
        gauges(
            "gcra_build_info",
            "Always 1; the label is the version of the agent.",
            [measured(&version, 1.0)],
        ),
        gauges(
            "process_start_time_seconds",
            "When the agent was started, in seconds since 1970.",
            [measured(&[], status.start_time_seconds)],
        ),
        counters(
            "gcra_config_reloads_total",
            "How often the configuration was read again, by result.",
            by("result", &status.config_reloads),
        ),
        counters(
            "gcra_admin_wrong_tokens_total",
            "Requests for actions of --admin that were refused because of a wrong token.",
            [counted(&[], status.wrong_tokens)],
        ),
        counters(
            "gcra_decisions_total",
            "Messages by policy and outcome. A blocked one was answered with blocked=true.",
            decisions,
        ),
        counters(
            "gcra_newly_blocked_total",
            "Messages by trial that it would block, and that its policy has allowed.",
            newly_blocked,
        ),
        counters(
            "gcra_delayed_total",
            "Messages by policy that were allowed with a delay, because of max_delay.",
            delayed,
        ),
        counters(
            "gcra_limit_args_total",
            "Messages by policy and what the arg with the numbers of a limit was: valid, lowered \
             to the highest limit, invalid, or missing.",
            limit_args,
        ),
        counters(
            "gcra_settled_total",
            "Messages of responses by policy that have settled requests, by outcome.",
            settled,
        ),
        counters(
            "gcra_settled_cells_total",
            "Cells that responses have charged and given back, by policy and kind.",
            settled_cells,
        ),
        counters(
            "gcra_unmatched_total",
            "Messages that got no decision, because there is no policy for them.",
            [counted(&[], status.unmatched)],
        ),
    ]
}

fn of_notifies(status: &Status) -> Vec<MetricFamily> {
    let notifies = &status.notifies;
    vec![
        counters("gcra_notifies_total", "NOTIFYs answered.", [counted(&[], notifies.answered)]),
        histogram(
            "gcra_latency_seconds",
            "Time from reading a NOTIFY to writing its ACK.",
            &status.latency,
        ),
        counters("gcra_ack_bytes_total", "Bytes of all ACKs.", [counted(&[], notifies.ack_bytes)]),
        counters(
            "gcra_notifies_shed_total",
            "NOTIFYs answered without a decision, because there were too many connections.",
            [counted(&[], notifies.shed)],
        ),
        counters(
            "gcra_notifies_overdue_total",
            "NOTIFYs whose late reply did not come in time.",
            [counted(&[], notifies.overdue)],
        ),
        counters(
            "gcra_notifies_reassembled_total",
            "NOTIFYs that arrived in several frames.",
            [counted(&[], notifies.reassembled)],
        ),
        gauges(
            "gcra_waiting",
            "NOTIFYs that are waiting for a late reply.",
            [measured(&[], float(notifies.waiting))],
        ),
        counters(
            "gcra_handler_panics_total",
            "NOTIFYs answered without a decision, because of a bug in the agent.",
            [counted(&[], notifies.handler_panics)],
        ),
    ]
}

fn of_connections(connections: &Connections) -> Vec<MetricFamily> {
    vec![
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
            "Connections that ended, by how.",
            by("end", &connections.ended),
        ),
        counters(
            "gcra_protocol_errors_total",
            "Connections ended because of a wrong frame, by status (SPOE.txt section 3.5).",
            by("status", &connections.protocol_errors),
        ),
        counters(
            "gcra_accept_errors_total",
            "Connections that could not be accepted, such as without free file descriptors.",
            [counted(&[], connections.accept_errors)],
        ),
        gauges(
            "gcra_buffered_bytes",
            "Bytes of incomplete frames and unread answers that all connections keep.",
            [measured(&[], float(connections.buffered_bytes))],
        ),
    ]
}

fn of_table(table: &TableStatus) -> Vec<MetricFamily> {
    vec![
        gauges(
            "gcra_table_slots",
            "Slots of the shared table by state, counted at most every 10 s.",
            table
                .states
                .iter()
                .map(|(state, count)| measured(&[("state", state)], float(*count)))
                .collect::<Vec<_>>(),
        ),
        counters(
            "gcra_table_evictions_total",
            "Buckets that owed something and were evicted, because the shared table was full.",
            [counted(&[], table.evictions)],
        ),
        counters(
            "gcra_table_forgiven_seconds_total",
            "What evicted buckets owed; times the rate, this many requests too many may have \
             been allowed.",
            [metric(&[], |metric| metric.set_counter(counter(table.forgiven_seconds)))],
        ),
        counters(
            "gcra_table_gave_up_total",
            "Requests denied because other decisions changed the bucket at every try.",
            [counted(&[], table.gave_up)],
        ),
        gauges(
            "gcra_table_processes",
            "Agents that use the shared table.",
            [measured(&[], float(table.processes))],
        ),
        gauges(
            "gcra_table_disagreeing_agents",
            "Agents that use the shared table with other limits than this one.",
            [measured(&[], float(table.disagreeing_agents))],
        ),
        gauges(
            "gcra_table_detached",
            "1 while the file that this agent uses has been removed or replaced under its name.",
            [measured(&[], f64::from(u8::from(table.detached)))],
        ),
    ]
}

fn of_store(store: &StoreStatus, status: &Status) -> Vec<MetricFamily> {
    let without_store = status.policies.iter().flat_map(|policy| {
        let decided = |(verdict, count): (&String, &u64)| {
            counted(&[("policy", &policy.name), ("verdict", verdict)], *count)
        };
        policy.without_store.iter().map(decided).collect::<Vec<_>>()
    });
    let counts = [
        ("gcra_store_asks_total", "Asks for cells that were sent to the store.", store.asks),
        (
            "gcra_store_charges_total",
            "Charges that were sent to the store: requests, and responses that settle them.",
            store.charges,
        ),
        (
            "gcra_store_charges_unknown_total",
            "Charges without a reply that can be used.",
            store.charges_unknown,
        ),
        (
            "gcra_store_charges_away_total",
            "Charges that were not sent, because no server could be used or too many were under \
             way.",
            store.charges_away,
        ),
        (
            "gcra_store_calls_total",
            "Calls to servers of the store; a call has one ask or charge, or several.",
            store.calls,
        ),
        ("gcra_store_replies_total", "Replies of the store that can be used.", store.replies),
        ("gcra_store_void_total", "Asks without a reply that can be used.", store.void),
        (
            "gcra_store_late_total",
            "Asks that the store did not answer in time. They are void, too.",
            store.late,
        ),
        (
            "gcra_store_ignored_total",
            "Asks that the store has ignored, because a later one came first.",
            store.ignored,
        ),
        (
            "gcra_store_away_total",
            "Asks that were not sent, because no server could be used or too many were under way.",
            store.not_sent,
        ),
        ("gcra_store_granted_cells_total", "Cells that the store has lent.", store.granted_cells),
        (
            "gcra_store_waited_total",
            "Requests that have waited for a reply of the store.",
            store.waited,
        ),
        (
            "gcra_store_timed_out_total",
            "Requests that stopped waiting for a reply, and were decided without it.",
            store.timed_out,
        ),
    ];
    let seconds = [
        (
            "gcra_store_answer_seconds_total",
            "Time from asks to their replies, all together.",
            store.answer_seconds,
        ),
        (
            "gcra_store_away_seconds_total",
            "Time in which no server of the store could be used, since the agent was started.",
            store.away_seconds_total,
        ),
    ];
    let seconds = seconds.into_iter().map(|(name, help, seconds)| {
        counters(name, help, [metric(&[], |metric| metric.set_counter(counter(seconds)))])
    });
    let mut families = vec![gauges(
        "gcra_store_up",
        "1 while the store can be asked about every key.",
        [measured(&[], f64::from(u8::from(store.up)))],
    )];
    let counts =
        counts.into_iter().map(|(name, help, count)| counters(name, help, [counted(&[], count)]));
    families.extend(counts.chain(seconds));
    families.push(counters(
        "gcra_store_fallback_total",
        "Messages that were decided without the store, by policy and outcome.",
        without_store,
    ));
    families.push(counters(
        "gcra_store_clock_leaps_total",
        "How often the clock of a server of the store has leapt, by direction.",
        by("direction", &store.clock_leaps),
    ));
    families
}

fn of_leases(leases: &LeasesStatus) -> Vec<MetricFamily> {
    let states = leases.states.iter();
    let states = states.map(|(state, count)| measured(&[("state", state)], float(*count)));
    vec![
        gauges(
            "gcra_lease_machines",
            "Machines that share limits with this one, itself included; 0 if that is not known.",
            [measured(&[], float(leases.machines))],
        ),
        gauges(
            "gcra_lease_held_cells",
            "Cells that this machine can spend without asking, counted at most every 10 s.",
            [measured(&[], float(leases.held_cells))],
        ),
        gauges(
            "gcra_lease_entries",
            "Entries of the file of leases by state, counted at most every 10 s.",
            states.collect::<Vec<_>>(),
        ),
        counters(
            "gcra_lease_evicted_total",
            "Entries that another key took although their own key needed them.",
            [counted(&[], leases.evicted)],
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

/// A bucket of Prometheus also counts everything below it.
fn histogram(name: &str, help: &str, latency: &Latency) -> MetricFamily {
    let mut total = 0;
    let mut buckets = Vec::new();
    for bucket in &latency.buckets {
        total += bucket.count;
        // The encoder writes the last one, which has no bound, from the total.
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

#[expect(clippy::cast_precision_loss, reason = "all numbers of Prometheus are floats")]
fn float(count: u64) -> f64 {
    count as f64
}
