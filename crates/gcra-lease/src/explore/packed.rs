//! A [`World`] in about a hundred bytes, for those that the search still has to go on from.
//!
//! All numbers are small, and times are written relative to now, so that a byte holds each.

use crate::explore::world::{Host, Model, START, Travelling, World};
use crate::holding::{Asking, Holding, Sent};
use crate::limit::{SharedLimit, Units};
use crate::message::{Ask, AskNumber, HostId};
use crate::police::Police;
use crate::record::{Denied, Lease, Record};
use crate::time::{HostTime, Micros, StoreTime};

pub(super) struct Packed(Box<[u8]>);

impl Packed {
    pub(super) fn new(world: &World, model: &Model, limit: &SharedLimit) -> Self {
        let mut bytes = Vec::with_capacity(128);
        let mut put = |numbers: &[u64]| {
            bytes.extend(numbers.iter().map(|number| u8::try_from(*number).unwrap()));
        };
        // The debt is a whole number of microseconds.
        let micros = |units: u64| units >> limit.fraction_bits();
        let mut left = world.left;
        put(&left.faults().map(|times| u64::from(*times)));
        put(&[world.in_tick(model).into()]);
        for which in 0..model.limits {
            let (police, record) = (&world.police[which], &world.records[which]);
            put(&[micros(police.owed(limit, world.now)), police.extra.into()]);
            put(&[micros(record.owed.0)]);
            put(&record.denied.map_or([0; 2], |it| [it.host.0, it.until.0 - world.clock]));
            put(&[record.leases.len() as u64]);
            for lease in &record.leases {
                let expires = lease.expiry.0 - world.clock;
                put(&[lease.host.0, lease.cells.into(), expires, lease.number.0]);
            }
        }
        for host in &world.hosts {
            put(&[host.id.0, host.next_number]);
            for which in 0..model.limits {
                let holding = &host.holdings[which];
                let valid_for = holding.valid_until.0.saturating_sub(world.now);
                put(&[host.asks_left[which].into(), holding.held.into(), valid_for]);
                let asking = holding.asking.map_or(0, |asking| asking.number.0);
                put(&[holding.spent.into(), asking, holding.fresh.into()]);
            }
        }
        put(&[world.asks.len() as u64]);
        for (which, Sent { ask, at }) in &world.asks {
            put(&[*which as u64, ask.host.0, ask.number.0, ask.fresh.into()]);
            put(&[ask.spent, ask.holds, ask.want, ask.least].map(u64::from));
            put(&[ask.validity.0, (world.now - at.0).min(ask.validity.0)]);
        }
        put(&[world.replies.len() as u64]);
        for Travelling { host, limit, void, number, kept, granted } in &world.replies {
            put(&[host.0, *limit as u64, (*void).into(), number.0]);
            put(&[*kept, *granted].map(u64::from));
        }
        Self(bytes.into())
    }

    pub(super) fn world(&self, model: &Model, limit: &SharedLimit) -> World {
        let mut bytes = self.0.iter();
        let mut get = || *bytes.next().unwrap();
        let units = |micros: u8| limit.drained_in(Micros(micros.into()));
        let clock = |later: u8| StoreTime(START).saturating_add(Micros(later.into()));
        let mut world = World::new(model);
        world.left.faults().into_iter().for_each(|times| *times = get());
        // START is a multiple of every tick.
        world.now = START + u64::from(get());
        let now = world.now;
        for which in 0..model.limits {
            world.police[which] = Police::owing(limit, now, units(get()), get().into());
            let owed: Units = units(get());
            let (host, until) = (get(), get());
            let denied = Denied { host: HostId(host.into()), until: clock(until) };
            let mut record = Record::new(StoreTime(START));
            record.owed = owed;
            record.denied = (host > 0).then_some(denied);
            for _ in 0..get() {
                let [host, cells, expires, number] = [(); 4].map(|()| get());
                record.leases.push(Lease {
                    host: HostId(host.into()),
                    cells: cells.into(),
                    expiry: clock(expires),
                    number: AskNumber(number.into()),
                });
            }
            world.records[which] = record;
        }
        for host in &mut world.hosts {
            let [id, next_number] = [(); 2].map(|()| get());
            *host = Host { id: HostId(id.into()), next_number: next_number.into(), ..*host };
            for which in 0..model.limits {
                host.asks_left[which] = get();
                let [held, valid_for, spent, number, fresh] = [(); 5].map(|()| get());
                // With no patience, it does not matter since when an ask is under way.
                let asking = Asking { number: AskNumber(number.into()), since: HostTime(now) };
                host.holdings[which] = Holding {
                    held: held.into(),
                    valid_until: HostTime(now + u64::from(valid_for)),
                    spent: spent.into(),
                    asking: (number > 0).then_some(asking),
                    fresh: fresh > 0,
                    ..Holding::new()
                };
            }
        }
        for _ in 0..get() {
            let [which, host, number, fresh] = [(); 4].map(|()| get());
            let [spent, holds, want, least] = [(); 4].map(|()| u32::from(get()));
            let [validity, age] = [(); 2].map(|()| get());
            let ask = Ask {
                host: HostId(host.into()),
                number: AskNumber(number.into()),
                fresh: fresh > 0,
                spent,
                debt: 0,
                owed_ago: Ask::NOTHING_OWED,
                holds,
                want,
                least,
                validity: Micros(validity.into()),
            };
            let at = HostTime(now - u64::from(age));
            world.asks.push((which.into(), Sent { ask, at }));
        }
        for _ in 0..get() {
            let [host, which, void, number] = [(); 4].map(|()| get());
            let [kept, granted] = [(); 2].map(|()| u32::from(get()));
            world.replies.push(Travelling {
                host: HostId(host.into()),
                limit: which.into(),
                void: void > 0,
                number: AskNumber(number.into()),
                kept,
                granted,
            });
        }
        world
    }
}
