//! HAProxy lets requests pass without asking, and what passes in all keeps to the limit that is
//! written: against a model of its processes, whose requests interleave at random.

use super::*;

/// One HAProxy process, and what it knows about the one client: the rules of
/// `haproxy/ask-less.cfg`.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    count: u32,
    is_locked: bool,
    /// When it had the last request.
    last_ns: u64,
}

/// A request that is asked about.
#[derive(Clone, Copy, Debug)]
struct Asking {
    /// The number of its process.
    process: usize,
    has_lock: bool,
    cost: u32,
    /// Whether it is allowed, once the agent has decided.
    allowed: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait {
        us: u64,
    },
    /// A request to one of the processes that take new ones, or to the one before it.
    Request {
        place: usize,
        to_old: bool,
    },
    /// The agent decides about one of the requests that are asked about.
    Decide {
        which: usize,
    },
    /// HAProxy gets the answer to one of them.
    Answer {
        which: usize,
    },
    /// A process is replaced, if it may be. The one before it lives on for a while.
    Reload {
        place: usize,
    },
    End {
        place: usize,
    },
    /// A process forgets the client, if it may.
    Forget {
        place: usize,
    },
}

#[derive(Clone, Debug)]
struct Setting {
    /// Requests an hour, and the burst.
    rate: u64,
    burst: u32,
    unasked: u32,
    asked_by: usize,
    reload_ms: Option<u64>,
    penalty: bool,
}

impl Setting {
    fn file(&self) -> String {
        let Self { rate, burst, unasked, asked_by, reload_ms, penalty } = self;
        let reload = reload_ms.map(|ms| format!("reload_every = \"{ms}ms\"\n"));
        let penalty = if *penalty { "penalty = { ceiling = \"30m\" }\n" } else { "" };
        format!(
            "answer = [\"remaining\", \"limit\", \"reset\"]\n[policy.api]\nlimits = \"{rate}/h \
             burst {burst}\"\nkey = [\"ip\"]\ncost = \"cost\"\nunasked = {unasked}\nasked_by = \
             {asked_by}\n{}{penalty}",
            reload.unwrap_or_default()
        )
    }

    fn interval_ns(&self) -> u64 {
        3_600_000_000_000 / self.rate
    }
}

fn settings() -> impl Strategy<Value = Setting> {
    let reload = prop::option::of(prop::sample::select(vec![1_000, 20_000, 3_600_000_u64]));
    let rate = prop::sample::select(vec![3_600_u64, 36_000, 360_000]);
    (rate, 1..8_u32, 1..4_usize, reload, 0..12_u32, prop::bool::weighted(0.2)).prop_filter_map(
        "the reloads use up the rate",
        |(rate, unasked, asked_by, reload_ms, more, penalty)| {
            let unpaid = unasked * u32::try_from(asked_by).unwrap();
            let reserve = unpaid * if reload_ms.is_some() { 2 } else { 1 };
            let burst = reserve + unasked + 1 + more;
            let setting = Setting { rate, burst, unasked, asked_by, reload_ms, penalty };
            let takes_ms = setting.interval_ns() / 1_000_000 * u64::from(unpaid) * 2;
            (reload_ms.unwrap_or(u64::MAX) > takes_ms * 2).then_some(setting)
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![0..2_000_u64, 10_000..200_000_u64, 1_000_000..30_000_000_u64];
    let place = any::<usize>;
    let step = prop_oneof![
        2 => wait.prop_map(|us| Step::Wait { us }),
        40 => (place(), prop::bool::weighted(0.2))
            .prop_map(|(place, to_old)| Step::Request { place, to_old }),
        20 => place().prop_map(|which| Step::Decide { which }),
        20 => place().prop_map(|which| Step::Answer { which }),
        2 => place().prop_map(|place| Step::Reload { place }),
        2 => place().prop_map(|place| Step::End { place }),
        2 => place().prop_map(|place| Step::Forget { place }),
    ];
    prop::collection::vec(step, 40..400)
}

/// The processes in their places, the requests that are under way, and what has passed.
struct World {
    setting: Setting,
    scenario: Scenario,
    processes: Vec<Process>,
    /// For each place the process that takes new requests, and the one before it.
    places: Vec<(usize, Option<usize>)>,
    /// When the last process of each place that was replaced has ended.
    ended_ns: Vec<Option<u64>>,
    asking: Vec<Asking>,
    passed_ns: Vec<u64>,
    denied: usize,
}

impl World {
    async fn new(setting: &Setting) -> Self {
        let places = (0..setting.asked_by).map(|place| (place, None)).collect();
        Self {
            scenario: Scenario::new(&setting.file()).await,
            processes: vec![Process::default(); setting.asked_by],
            places,
            ended_ns: vec![None; setting.asked_by],
            asking: Vec::new(),
            passed_ns: Vec::new(),
            denied: 0,
            setting: setting.clone(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.scenario.table.load().now().0
    }

    fn pass(&mut self) {
        self.passed_ns.push(self.now_ns());
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Wait { us } => {
                self.scenario.clock.advance(Nanos(us * 1_000));
                self.scenario.housekeeping();
            }
            Step::Request { place, to_old } => {
                let (current, old) = self.places[place % self.places.len()];
                self.request(if to_old { old.unwrap_or(current) } else { current });
            }
            Step::Decide { which } => {
                let mut waiting = self.asking.iter().enumerate();
                let count = waiting.clone().filter(|(_, it)| it.allowed.is_none()).count();
                if count > 0 {
                    let waiting = waiting.by_ref().filter(|(_, it)| it.allowed.is_none());
                    let place = waiting.map(|(place, _)| place).nth(which % count).unwrap();
                    self.decide(place).await;
                }
            }
            Step::Answer { which } => {
                let count = self.asking.iter().filter(|it| it.allowed.is_some()).count();
                if count > 0 {
                    let decided = self.asking.iter().enumerate();
                    let decided = decided.filter(|(_, it)| it.allowed.is_some());
                    let place = decided.map(|(place, _)| place).nth(which % count).unwrap();
                    self.answer(place);
                }
            }
            Step::Reload { place } => self.reload(place % self.places.len()),
            Step::End { place } => self.end(place % self.places.len()),
            Step::Forget { place } => self.forget(place % self.places.len()),
        }
    }

    fn request(&mut self, number: usize) {
        let (unasked, now) = (self.setting.unasked, self.now_ns());
        let process = &mut self.processes[number];
        process.last_ns = now;
        process.count += 1;
        if process.count <= unasked {
            return self.pass();
        }
        let has_lock = !process.is_locked;
        process.is_locked = true;
        let cost = if has_lock { unasked + 1 } else { 1 };
        self.asking.push(Asking { process: number, has_lock, cost, allowed: None });
    }

    /// Returns the variable `remaining`.
    async fn decide(&mut self, place: usize) -> u64 {
        let cost = i32::try_from(self.asking[place].cost).unwrap();
        let args = [("ip", address("192.0.2.1")), ("cost", Value::Int32(cost))];
        let answer = self.scenario.ask(&args).await;
        assert_eq!(number(&answer, "limit"), u64::from(self.setting.burst));
        let is_blocked = answer.var(Scope::Transaction, "blocked") == Some(Value::Bool(true));
        self.asking[place].allowed = Some(!is_blocked);
        if is_blocked {
            self.denied += 1;
        } else {
            self.pass();
        }
        number(&answer, "remaining")
    }

    fn answer(&mut self, place: usize) {
        let Asking { process, has_lock, cost, allowed } = self.asking.remove(place);
        let process = &mut self.processes[process];
        if cost > 1 && allowed == Some(true) {
            process.count = 0;
        }
        if has_lock {
            process.is_locked = false;
        }
    }

    fn reload(&mut self, place: usize) {
        let Some(every) = self.setting.reload_ms else { return };
        let since = self.ended_ns[place].map_or(u64::MAX, |ended| self.now_ns() - ended);
        let (current, old) = self.places[place];
        if old.is_none() && since >= every * 1_000_000 {
            self.places[place] = (self.processes.len(), Some(current));
            self.processes.push(Process::default());
        }
    }

    fn end(&mut self, place: usize) {
        let (current, old) = self.places[place];
        if let Some(old) = old
            && self.asking.iter().all(|asking| asking.process != old)
        {
            self.ended_ns[place] = Some(self.now_ns());
            self.places[place] = (current, None);
        }
    }

    /// Lets a process forget the client, if it was silent for long enough: anywhere for as long
    /// as a burst takes, or if there are several processes, there and for as long as between two
    /// reloads.
    fn forget(&mut self, place: usize) {
        let (current, _) = self.places[place];
        let Setting { asked_by, burst, reload_ms, .. } = self.setting;
        let drain = u64::from(burst) * self.setting.interval_ns();
        let (since, silence) = match (asked_by, reload_ms) {
            (1, _) => (self.processes.iter().map(|it| it.last_ns).max().unwrap(), drain),
            (_, Some(ms)) => (self.processes[current].last_ns, drain.max(ms * 1_000_000)),
            (_, None) => return,
        };
        let is_silent = self.now_ns() - since >= silence;
        if is_silent && self.asking.iter().all(|asking| asking.process != current) {
            self.processes[current] = Process::default();
        }
    }

    /// How many passed too many in any time, at most.
    fn too_many(&self) -> i128 {
        let interval = i128::from(self.setting.interval_ns());
        // In cells: what has passed up to a moment, less what has come back until then. It rises
        // by no more than the burst.
        let (mut least, mut worst) = (i128::MAX, i128::MIN);
        for (count, at) in (0_i128..).zip(&self.passed_ns) {
            let level = count * interval - i128::from(*at);
            least = least.min(level);
            worst = worst.max(level + interval - least);
        }
        worst - i128::from(self.setting.burst) * interval
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No more requests pass, asked about or not, than the limit that is written allows in any
    /// time; and what `remaining` promises can be had, by whichever processes.
    #[test]
    fn no_more_pass_than_the_written_limit_allows(
        setting in settings(),
        steps in steps(),
        rest in prop::collection::vec(any::<(usize, bool)>(), 300),
    ) {
        run(async {
            let mut world = World::new(&setting).await;
            for step in &steps {
                world.step(*step).await;
            }
            prop_assert!(world.too_many() <= 0, "{} ns too many", world.too_many());
            // Of what is under way, one question is decided about. Nobody waits from then on.
            let waiting = world.asking.iter().position(|asking| asking.allowed.is_none());
            if let Some(place) = waiting {
                let remaining = world.decide(place).await;
                let (passed, denied) = (world.passed_ns.len(), world.denied);
                for (number, decides) in rest {
                    let request = Step::Request { place: number, to_old: number % 3 == 0 };
                    let what = if decides { Step::Decide { which: number } } else { request };
                    world.step(what).await;
                    world.step(Step::Answer { which: number }).await;
                    if world.denied > denied {
                        break;
                    }
                }
                let more = (world.passed_ns.len() - passed) as u64;
                prop_assert!(
                    world.denied == denied || more >= remaining,
                    "{remaining} were promised, and {more} passed"
                );
                prop_assert!(world.too_many() <= 0);
            }
            Ok(())
        })?;
    }
}

impl World {
    /// Sends requests to a process until one is denied.
    async fn flood(&mut self) {
        let denied = self.denied;
        while self.denied == denied {
            self.request(self.places[0].0);
            if !self.asking.is_empty() {
                self.decide(0).await;
                self.answer(0);
            }
        }
    }
}

/// A client that sends as much as it can, while HAProxy is reloaded as often as it may be: what
/// each process forgets is as much as the lower rate keeps back.
#[test]
fn what_reloads_forget_is_in_the_lower_rate() {
    let setting = Setting {
        rate: 36_000,
        burst: 10,
        unasked: 3,
        asked_by: 1,
        reload_ms: Some(1_000),
        penalty: false,
    };
    run(async {
        let mut world = World::new(&setting).await;
        world.flood().await;
        for _ in 0..30 {
            for _ in 0..50 {
                world.step(Step::Wait { us: 20_000 }).await;
                world.flood().await;
            }
            world.step(Step::Reload { place: 0 }).await;
            world.step(Step::End { place: 0 }).await;
            world.flood().await;
        }
        assert_eq!(world.processes.len(), 31);
        assert!(world.too_many() <= 0, "{} ns too many", world.too_many());
        let interval = i128::from(setting.interval_ns());
        assert!(world.too_many() > -4 * interval, "{} ns too few", -world.too_many());
    });
}

/// As above with two processes, of which one is asked rarely: it forgets the client as often as it
/// is reloaded, while the client goes on at the other.
#[test]
fn what_several_processes_forget_is_in_the_lower_rate() {
    let setting = Setting {
        rate: 36_000,
        burst: 20,
        unasked: 3,
        asked_by: 2,
        reload_ms: Some(2_000),
        penalty: false,
    };
    run(async {
        let mut world = World::new(&setting).await;
        for _ in 0..20 {
            for _ in 0..100 {
                world.step(Step::Wait { us: 20_000 }).await;
                world.flood().await;
            }
            world.step(Step::Forget { place: 1 }).await;
            for reloads in [true, false] {
                for _ in 0..setting.unasked {
                    world.step(Step::Request { place: 1, to_old: false }).await;
                }
                for place in (0..2).filter(|_| reloads) {
                    world.step(Step::Reload { place }).await;
                    world.step(Step::End { place }).await;
                }
            }
            world.flood().await;
        }
        assert_eq!((world.processes.len(), world.asking.len()), (42, 0));
        assert!(world.too_many() <= 0, "{} ns too many", world.too_many());
    });
}

/// Of a burst all can pass at once, if its requests are under way together, and not one more.
#[test]
fn the_whole_burst_can_pass_at_once() {
    let setting = Setting {
        rate: 3_600,
        burst: 20,
        unasked: 7,
        asked_by: 1,
        reload_ms: None,
        penalty: false,
    };
    run(async {
        let mut world = World::new(&setting).await;
        (0..40).for_each(|_| world.request(0));
        assert_eq!((world.passed_ns.len(), world.asking.len()), (7, 33));
        for place in 0..6 {
            world.decide(place).await;
        }
        // One has paid for eight, and five for themselves.
        assert_eq!((world.passed_ns.len(), world.denied), (13, 0));
        for place in 6..world.asking.len() {
            world.decide(place).await;
        }
        assert_eq!((world.passed_ns.len(), world.denied), (13, 27));
        // Requests that were paid for are forgotten, so that seven more pass.
        (0..33).for_each(|_| world.answer(0));
        world.flood().await;
        assert_eq!(world.passed_ns.len(), 20);
        assert_eq!(world.too_many(), 0);
    });
}

/// Answers about a limit of 20: the burst is the one that is written, and `remaining` leaves out
/// what HAProxy may have let pass since the question before.
#[tokio::test]
async fn the_answer_names_the_limit_that_is_written() {
    let file =
        "answer = [\"remaining\", \"limit\", \"reset\", \"ratelimit\", \"ratelimit_policy\"]
[policy.api]
limits = \"10/s burst 20\"
key = [\"ip\"]
cost = \"cost\"
unasked = 7
";
    let mut scenario = Scenario::new(file).await;
    for (cost, blocked, remaining, ratelimit) in [
        (8, false, 5, "\"api\";r=5;t=1"),
        // Seven may have passed since then.
        (1, false, 0, "\"api\";r=0;t=2"),
        (8, true, 0, "\"api\";r=0;t=2"),
        (4, false, 0, "\"api\";r=0;t=2"),
        (1, true, 0, "\"api\";r=0;t=2"),
    ] {
        let args = [("ip", address("192.0.2.1")), ("cost", Value::Int32(cost))];
        let answer = scenario.ask(&args).await;
        let var = |name| answer.var(Scope::Transaction, name);
        assert_eq!(var("blocked"), Some(Value::Bool(blocked)));
        assert_eq!((number(&answer, "limit"), number(&answer, "remaining")), (20, remaining));
        assert_eq!(var("ratelimit"), Some(Value::String(ratelimit.as_bytes())), "{cost}");
        assert_eq!(var("ratelimit_policy"), Some(Value::String(b"\"api\";q=20;w=2")));
    }
    let said = scenario.explain(&[("ip", address("192.0.2.2"))]).in_words();
    assert!(said.contains("no bucket, so all 20 are left, 7 of them in reserve"), "{said}");
    let said = scenario.explain(&[("ip", address("192.0.2.1"))]).in_words();
    assert!(said.contains("10 per second, up to 20 at once: blocked;"), "{said}");
    scenario.advance_ms(300);
    let said = scenario.explain(&[("ip", address("192.0.2.1"))]).in_words();
    assert!(said.contains("10 of 20 left, 7 of them in reserve; all 20 again in"), "{said}");
}

/// Other numbers of `unasked` are another limit, whose debts go along in cells.
#[tokio::test]
async fn a_debt_goes_along_when_unasked_changes() {
    let file = |more: &str| {
        format!(
            "[policy.api]\nlimits = \"10/h burst 20\"\nkey = [\"ip\"]\ncost = \"cost\"\n{more}"
        )
    };
    let mut scenario = Scenario::new(&file("")).await;
    assert_eq!(scenario.passed("192.0.2.1", 12).await, 12);
    scenario.reload(&file("unasked = 7\n"));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 1, "12 of 13 were used");
    scenario.reload(&file("unasked = 3\n"));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 4, "13 of 17 were used");
    scenario.reload(&file(""));
    assert_eq!(scenario.passed("192.0.2.1", 9).await, 3, "17 of 20 were used");
}

/// A count in a window has its reserve, too, and an override has one of its own.
#[tokio::test]
async fn counts_and_overrides_have_a_reserve() {
    let mut scenario = Scenario::new(
        "[policy.api]\nlimits = { count = 20, window = \"day\" }\nkey = [\"ip\"]\ncost = \
         \"cost\"\nunasked = 7\n[policy.api.overrides]\n\"192.0.2.2\" = \"10/h burst 30\"\n",
    )
    .await;
    assert_eq!(scenario.passed("192.0.2.1", 40).await, 13);
    assert_eq!(scenario.passed("192.0.2.2", 40).await, 23);
    let said = scenario.explain(&[("ip", address("192.0.2.3"))]).in_words();
    assert!(said.contains("no bucket, so all 20 are left, 7 of them in reserve"), "{said}");
}

/// The flags make the same limit, in the same buckets.
#[tokio::test]
async fn the_flags_keep_a_reserve() {
    let mut scenario = Scenario::of(flags(&[
        "--rate",
        "10/h",
        "--burst",
        "30",
        "--cost",
        "cost",
        "--unasked",
        "7",
        "--asked-by",
        "2",
    ]))
    .await;
    assert_eq!(scenario.passed("192.0.2.1", 40).await, 16);
}
