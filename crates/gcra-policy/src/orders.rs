//! The orders about the clients of a policy, as decisions look for them.
//!
//! The most specific order counts, and of equally specific ones the newest: the client's own order
//! before that for a network, and a smaller network before a larger one.

use std::net::IpAddr;
use std::ops::Range;

use gcra_table::board::{Order, OrderKind, OrderTarget};
use gcra_table::{KeyHash, Time};

/// The address of a client whose key is one address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClientAddress {
    /// The address as the policy counts it: an IPv4 address in each of its forms.
    pub ip: IpAddr,
    /// The address as HAProxy sent it.
    pub sent: IpAddr,
    /// How many bits its group of addresses has in common; all of them if it is counted alone.
    pub prefix: u8,
}

/// An order, as decisions need it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OrderInForce {
    pub kind: OrderKind,
    pub until: Time,
    given: Time,
    /// Its place in the list of all orders.
    pub place: usize,
}

/// The orders about the clients of a policy.
#[derive(Debug, Default)]
pub struct PolicyOrders {
    /// Those about single clients, by the number of their key.
    clients: Vec<(u64, OrderInForce)>,
    /// Those about networks, by their kind and their first address.
    networks: Vec<(NetworkKind, u128, OrderInForce)>,
    /// The places of each kind of networks, the longest prefixes first. There are at most as many
    /// as there are prefix lengths, which bounds a look-up.
    kinds: Vec<(NetworkKind, Range<usize>)>,
}

/// The family of a network, and its prefix length.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct NetworkKind {
    /// The longest prefixes come first.
    host_bits: u8,
    is_v4: bool,
}

impl NetworkKind {
    fn new(ip: IpAddr, prefix: u8) -> Self {
        let bits: u8 = if ip.is_ipv4() { 32 } else { 128 };
        Self { host_bits: bits.saturating_sub(prefix), is_v4: ip.is_ipv4() }
    }

    fn prefix(self) -> u8 {
        (if self.is_v4 { 32 } else { 128_u8 }).saturating_sub(self.host_bits)
    }

    /// The first address of the network of this kind that an address is in.
    fn first_of(self, ip: u128) -> u128 {
        ip.checked_shr(self.host_bits.into())
            .and_then(|net| net.checked_shl(self.host_bits.into()))
            .unwrap_or(0)
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl PolicyOrders {
    /// Those of a policy. `None` if there are none. `follows` says whether the policy follows an
    /// order.
    pub fn of(all: &[Order], follows: impl Fn(&Order) -> bool) -> Option<Box<Self>> {
        let mut orders = Self::default();
        for (place, order) in all.iter().enumerate().filter(|(_, order)| follows(order)) {
            let Order { kind, target, until, given, .. } = *order;
            let in_force = OrderInForce { kind, until, given, place };
            match target {
                OrderTarget::Client { key, .. } => orders.clients.push((key.get(), in_force)),
                OrderTarget::Network { first, prefix } => {
                    let kind = NetworkKind::new(first, prefix);
                    orders.networks.push((kind, kind.first_of(number(first)), in_force));
                }
            }
        }
        if orders.clients.is_empty() && orders.networks.is_empty() {
            return None;
        }
        // Of two about the same clients the newer one counts.
        orders.clients.sort_by_key(|(key, order)| (*key, order.given));
        orders
            .clients
            .dedup_by(|later, kept| is_replaced((later.0, later.1), (kept.0, &mut kept.1)));
        orders.networks.sort_by_key(|(kind, first, order)| (*kind, *first, order.given));
        orders.networks.dedup_by(|later, kept| {
            is_replaced(((later.0, later.1), later.2), ((kept.0, kept.1), &mut kept.2))
        });
        let mut begin = 0;
        for kinds in orders.networks.chunk_by(|(one, ..), (other, ..)| one == other) {
            let end = begin + kinds.len();
            orders.kinds.extend(kinds.first().map(|(kind, ..)| (*kind, begin..end)));
            begin = end;
        }
        Some(Box::new(orders))
    }

    /// The order about a client: the most specific one, and of equally specific ones the newest.
    /// `address` is called only where there are orders about networks.
    #[inline(never)]
    pub fn find(
        &self,
        key: KeyHash,
        now: Time,
        address: impl FnOnce() -> Option<ClientAddress>,
    ) -> Option<OrderInForce> {
        let at = self.clients.binary_search_by_key(&key.get(), |(key, _)| *key);
        let own = at.ok().and_then(|at| self.clients.get(at)).map(|(_, order)| *order);
        let own = own.filter(|order| now < order.until);
        if self.networks.is_empty() {
            return own;
        }
        let Some(ClientAddress { ip, sent, prefix }) = address() else { return own };
        let network = self.around(ip, now).or_else(|| self.around(sent, now));
        match (own, network) {
            (Some(own), Some((net_prefix, network))) => {
                let is_newer = net_prefix >= prefix && network.given > own.given;
                Some(if is_newer { network } else { own })
            }
            (own, network) => own.or(network.map(|(_, order)| order)),
        }
    }

    /// The order about the smallest network that an address is in, and its prefix length.
    fn around(&self, ip: IpAddr, now: Time) -> Option<(u8, OrderInForce)> {
        let (is_v4, ip) = (ip.is_ipv4(), number(ip));
        let mut kinds = self.kinds.iter().filter(|(kind, _)| kind.is_v4 == is_v4);
        kinds.find_map(|(kind, places)| {
            let networks = self.networks.get(places.clone())?;
            let first = kind.first_of(ip);
            let at = networks.binary_search_by_key(&first, |(_, first, _)| *first).ok()?;
            let (_, _, order) = networks.get(at)?;
            (now < order.until).then_some((kind.prefix(), *order))
        })
    }
}

/// Puts a later order in the place of the one before it, if both are about the same clients.
fn is_replaced<C: PartialEq>(
    (later, order): (C, OrderInForce),
    (kept, place): (C, &mut OrderInForce),
) -> bool {
    let is_same = later == kept;
    if is_same {
        *place = order;
    }
    is_same
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use gcra_table::{Nanos, Slots, Table};
    use proptest::prelude::*;

    use super::*;

    /// A few addresses with many networks around them.
    fn any_ip() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0_u32..8).prop_map(|ip| IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0200 | ip))),
            (0_u128..8).prop_map(|ip| IpAddr::V6(Ipv6Addr::from_bits(0x2001_0db8 << 96 | ip))),
            Just(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            Just(IpAddr::V6(Ipv6Addr::from_bits(u128::MAX))),
        ]
    }

    #[derive(Clone, Debug)]
    enum About {
        Client(u8),
        Network(IpAddr, u8),
    }

    fn any_about() -> impl Strategy<Value = About> {
        prop_oneof![
            (0_u8..4).prop_map(About::Client),
            (any_ip(), prop_oneof![0_u8..=4, 27_u8..=32, 120_u8..=128])
                .prop_map(|(ip, prefix)| About::Network(ip, prefix)),
        ]
    }

    fn bits(ip: IpAddr) -> u8 {
        if ip.is_ipv4() { 32 } else { 128 }
    }

    /// Whether two addresses agree in so many bits, bit by bit.
    fn agree(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
        let bit = |ip, at: u8| number(ip) >> (bits(ip) - 1 - at) & 1;
        one.is_ipv4() == other.is_ipv4()
            && (0..prefix.min(bits(one))).all(|at| bit(one, at) == bit(other, at))
    }

    proptest! {
        /// The naive model goes through all orders, and takes the greatest of those about the
        /// client by how specific they are and when they were given.
        #[test]
        fn the_most_specific_order_counts_and_then_the_newest(
            orders in prop::collection::vec((any_about(), any::<bool>(), 1_u64..20), 0..24),
            clients in prop::collection::vec((0_u8..4, any_ip(), any::<bool>()), 1..8),
            now in 0_u64..20,
        ) {
            let table = Table::in_memory(Slots::new(8).unwrap()).unwrap();
            let key = |client: u8| table.hash(&[client]);
            let s = |seconds| Time(Nanos::from_secs(seconds).0);
            let made = |(given, (about, blocks, until)): (u64, &(About, bool, u64))| Order {
                policy: 7,
                kind: if *blocks { OrderKind::Block } else { OrderKind::Exempt },
                target: match about {
                    About::Client(client) => {
                        OrderTarget::Client { key: key(*client), groups: [None; 2] }
                    }
                    About::Network(ip, prefix) => {
                        OrderTarget::Network { first: *ip, prefix: (*prefix).min(bits(*ip)) }
                    }
                },
                until: s(*until),
                given: s(given),
                since: s(given),
                key: String::new(),
                note: String::new(),
                giver: String::new(),
            };
            let all: Vec<_> = (1..).zip(&orders).map(made).collect();
            let found = PolicyOrders::of(&all, |order| order.policy == 7);
            prop_assert_eq!(found.is_none(), all.is_empty());
            for (client, ip, is_grouped) in clients {
                // A policy may count addresses in groups.
                let prefix = bits(ip) - if is_grouped { 2 } else { 0 };
                let is_about = |order: &&Order| match order.target {
                    OrderTarget::Client { key: known, .. } => known == key(client),
                    OrderTarget::Network { first, prefix } => agree(first, ip, prefix),
                };
                // A network that is less than the group of a client is no more specific than it.
                let rank = |order: &&Order| match order.target {
                    OrderTarget::Client { .. } => prefix,
                    OrderTarget::Network { prefix: net, .. } => net,
                };
                // What was given later about the same clients is in the place of the earlier.
                let in_place: Vec<_> = all
                    .iter()
                    .filter(|one| {
                        !all.iter().any(|other| {
                            let same = match (one.target, other.target) {
                                (
                                    OrderTarget::Network { first: one, prefix: a },
                                    OrderTarget::Network { first: other, prefix: b },
                                ) => a == b && agree(one, other, a),
                                (one, other) => one == other,
                            };
                            same && other.given > one.given
                        })
                    })
                    .filter(|order| s(now) < order.until)
                    .filter(is_about)
                    .collect();
                let networks = in_place.iter().copied().filter(|order| {
                    matches!(order.target, OrderTarget::Network { .. })
                });
                let network = networks.max_by_key(|order| (rank(order), order.given));
                let own = in_place.iter().copied().find(|order| {
                    matches!(order.target, OrderTarget::Client { .. })
                });
                let right = match (own, network) {
                    (Some(own), Some(network)) if rank(&network) < rank(&own) => Some(own),
                    (Some(own), Some(network)) => {
                        Some(if network.given > own.given { network } else { own })
                    }
                    (own, network) => own.or(network),
                };
                let address = || Some(ClientAddress { ip, sent: ip, prefix });
                let order = found.as_ref().and_then(|it| it.find(key(client), s(now), address));
                let found = order.map(|order| (order.kind, order.until, order.given));
                prop_assert_eq!(found, right.map(|it| (it.kind, it.until, it.given)));
                let place = order.map(|order| all[order.place].given);
                prop_assert_eq!(place, right.map(|it| it.given));
            }
        }
    }
}
