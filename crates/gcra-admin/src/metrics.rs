//! An agent's status as Prometheus scrapes it.

use crate::family::{Family, Metrics, gauge};
use crate::status::{Connections, Counts, Notifies, PolicyStatus, Status, TableStatus};
use crate::store_status::{LeasesStatus, StoreStatus};

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4";

const BUILD: Family =
    gauge(1, "gcra_build_info", "Always 1; the label is the version of the agent.");

/// All families, in the order of the numbers of `/metrics`.
pub fn families() -> Vec<Family> {
    let parts = [
        &[BUILD],
        Status::FAMILIES,
        Counts::FAMILIES,
        PolicyStatus::FAMILIES,
        Notifies::FAMILIES,
        Connections::FAMILIES,
        TableStatus::FAMILIES,
        StoreStatus::FAMILIES,
        LeasesStatus::FAMILIES,
    ];
    let mut families = parts.concat();
    families.sort_by_key(|family| family.number);
    families
}

pub(crate) fn render(status: &Status) -> String {
    let mut metrics = Metrics::default();
    metrics.add(&BUILD, &[("version", &status.version)], &1);
    status.write(&[], &mut metrics);
    for policy in &status.policies {
        policy.write(&[("policy", &policy.name)], &mut metrics);
    }
    status.table.write(&[], &mut metrics);
    status.counts.write(&[], &mut metrics);
    status.counts.notifies.write(&[], &mut metrics);
    status.counts.connections.write(&[], &mut metrics);
    if let Some(store) = &status.counts.store {
        store.write(&[], &mut metrics);
        store.leases.write(&[], &mut metrics);
    }
    metrics.into_text()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::family::{NamedCounts, counter};

    #[test]
    fn each_family_has_its_own_number_and_name() {
        let families = families();
        let numbers: Vec<_> = families.iter().map(|family| usize::from(family.number)).collect();
        assert_eq!(numbers, (1..=families.len()).collect::<Vec<_>>());
        let names: BTreeSet<_> = families.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), families.len());
    }

    #[test]
    fn help_and_values_of_labels_are_escaped() {
        let family = counter(1, "n", "a \\ \"b\"\nc").by("of");
        let mut metrics = Metrics::default();
        let counts: NamedCounts = [("x\\\"\nü".to_owned(), 3)].into();
        metrics.add(&family, &[("policy", "p\"")], &counts);
        let wanted = "# HELP n a \\\\ \"b\"\\nc\n# TYPE n counter\n\
                      n{policy=\"p\\\"\",of=\"x\\\\\\\"\\nü\"} 3\n";
        assert_eq!(metrics.into_text(), wanted);
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut metrics = Metrics::default();
        metrics.add(&counter(1, "n", "").by("of"), &[], &NamedCounts::new());
        metrics.add(&counter(2, "n", ""), &[], &None::<u64>);
        assert_eq!(metrics.into_text(), "");
    }
}
