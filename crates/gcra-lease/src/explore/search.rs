//! The search: every world that can be reached, those nearest to the beginning first.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::explore::packed::Packed;
use crate::explore::world::{Model, World};

/// The result of the search.
pub(crate) struct Found {
    /// Worlds that differ.
    pub(crate) states: usize,
    /// The steps that lead to the furthest world.
    pub(crate) depth: usize,
    /// All worlds were seen.
    pub(crate) complete: bool,
    /// A shortest way to a violation, in words.
    pub(crate) violation: Option<Vec<String>>,
    pub(crate) took: Duration,
}

/// Fingerprints are mixed already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed")
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The fingerprint of each world that was seen, and that of the world before it: 17 bytes each.
type Seen = HashMap<u64, u64, BuildHasherDefault<Mixed>>;

/// Looks at all worlds of a model, or at `most`.
pub(crate) fn search(model: &Model, most: usize) -> Found {
    let began = Instant::now();
    let limit = model.limit();
    let first = World::new(model);
    let mut seen = Seen::default();
    seen.insert(first.fingerprint(model, &limit), 0);
    let mut level = vec![Packed::new(&first, model, &limit)];
    let mut depth = 0;
    let mut moves = Vec::new();
    let mut violation = None;
    // Each round is one step further; it ends because there are finitely many worlds.
    'further: while !level.is_empty() && seen.len() < most {
        let mut next = Vec::new();
        for packed in level.drain(..) {
            let world = packed.world(model, &limit);
            let here = world.fingerprint(model, &limit);
            world.moves(model, &mut moves);
            for &step in &moves {
                let mut after = world.clone();
                match after.take(model, &limit, step) {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(what) => {
                        let mut trace = way(model, &seen, here);
                        trace.extend([world.tell(step), what]);
                        violation = Some(trace);
                        break 'further;
                    }
                }
                let print = after.fingerprint(model, &limit);
                if print != here && !seen.contains_key(&print) {
                    seen.insert(print, here);
                    let packed = Packed::new(&after, model, &limit);
                    debug_assert_eq!(
                        packed.world(model, &limit).fingerprint(model, &limit),
                        print
                    );
                    next.push(packed);
                }
            }
        }
        depth += usize::from(!next.is_empty());
        level = next;
    }
    Found {
        states: seen.len(),
        depth,
        complete: violation.is_none() && level.is_empty(),
        violation,
        took: began.elapsed(),
    }
}

/// The steps from the beginning to a world, in words: each is the one that leads to the next
/// fingerprint.
fn way(model: &Model, seen: &Seen, to: u64) -> Vec<String> {
    let mut prints = vec![to];
    while let Some(&before) = prints.last().and_then(|print| seen.get(print)) {
        prints.push(before);
    }
    // The last is the 0 before the first world.
    prints.truncate(prints.len() - 2);
    let limit = model.limit();
    let mut world = World::new(model);
    let mut told = Vec::new();
    let mut moves = Vec::new();
    for print in prints.into_iter().rev() {
        world.moves(model, &mut moves);
        let step = moves.iter().copied().find(|&step| {
            let mut after = world.clone();
            let _ = after.take(model, &limit, step);
            after.fingerprint(model, &limit) == print
        });
        let step = step.unwrap();
        told.push(world.tell(step));
        let _ = world.take(model, &limit, step);
    }
    told
}
