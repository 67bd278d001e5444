//! `explain` says before a request what the agent answers then.

use super::*;

/// The settings of a file in the property below: limits, and everything that changes what they do.
#[derive(Clone, Debug)]
struct Shape {
    limits: Vec<(u32, u32)>,
    /// Beside them, so many in each hour of a zone.
    count: Option<u32>,
    overridden: Option<&'static str>,
    has_penalty: bool,
    max_delay_ms: u64,
    observes: bool,
    has_trial: bool,
    prefix: u8,
    has_fallback: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let overrides = [None, Some("2/s burst 4"), Some("unlimited"), Some("deny")];
    (
        (prop::collection::vec((1..4_u32, 1..7_u32), 1..3), prop::option::of(1..12_u32)),
        prop::sample::select(overrides.to_vec()),
        (any::<bool>(), prop::sample::select(vec![0, 0, 300, 1_500])),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::sample::select(vec![24_u8, 31, 32]),
        any::<bool>(),
    )
        .prop_map(|(limits, overridden, more, observes, has_trial, prefix, has_fallback)| {
            Shape {
                limits: limits.0,
                count: limits.1,
                overridden,
                has_penalty: more.0,
                max_delay_ms: more.1,
                observes,
                has_trial,
                prefix,
                has_fallback,
            }
        })
}

impl Shape {
    fn text(&self) -> String {
        let Self { limits, prefix, .. } = self;
        let mut limits: Vec<_> =
            limits.iter().map(|(rate, burst)| format!("\"{rate}/s burst {burst}\"")).collect();
        let count = |count| format!("{{ count = {count}, window = \"hour Asia/Kolkata\" }}");
        limits.extend(self.count.map(count));
        let key = if self.has_fallback { "\"user\", \"else ip\"" } else { "\"ip\"" };
        let mut text = format!(
            "answer = [\"would_block\", \"retry_after_ms\", \"reason\", \"policy\"]\n\
             [policy.gold]\nmessage = \"api\"\nwhen = {{ plan = \"gold\" }}\n\
             limits = \"5/s\"\nkey = [\"ip\"]\n\
             [policy.api]\nlimits = [{}]\nkey = [{key}]\ncost = \"cost\"\n\
             lowercase = true\nipv4_prefix = {prefix}\n",
            limits.join(", ")
        );
        if self.max_delay_ms > 0 {
            text.push_str(&format!("max_delay = \"{}ms\"\n", self.max_delay_ms));
        }
        for (is_wanted, line) in [
            (self.has_penalty, "penalty = { cells = 1, ceiling = \"5s\" }\n"),
            (self.observes, "mode = \"observe\"\n"),
            (self.has_trial && !self.observes, "observe = [\"1/s burst 2\"]\n"),
        ] {
            text.push_str(if is_wanted { line } else { "" });
        }
        if let Some(limits) = self.overridden {
            text.push_str(&format!("[policy.api.overrides]\n\"192.0.2.1\" = \"{limits}\"\n"));
        }
        text
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The agent answers as `explain` said about the request before it was sent: whatever the
    /// policies, after reloads, and for clients that are exempt.
    #[test]
    fn explain_predicts_the_answer(
        shapes in prop::collection::vec(shape(), 1..4),
        steps in prop::collection::vec((step(), 0..13_u8, 0..12_u8), 1..40),
    ) {
        let outcome = explain_predicts(&shapes, 1, &steps);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }

    /// Also what is owed by the keys and numbers of several changes, of which the register says
    /// nothing.
    #[test]
    fn explain_predicts_the_answer_after_many_reloads(
        shapes in prop::collection::vec(shape(), 3..6),
        steps in prop::collection::vec((short_step(), 0..13_u8, 0..4_u8), 20..60),
    ) {
        let outcome = explain_predicts(&shapes, 4, &steps);
        prop_assert!(outcome.is_ok(), "{}", outcome.unwrap_err());
    }
}

/// As [`step`], in which little is paid off.
fn short_step() -> impl Strategy<Value = (u64, u8, i32)> {
    (0..150_u64, 0..3_u8, 0..4_i32)
}

/// Takes these steps: a step, what happens before it (a reload, if the number is below
/// `reloads`), and what else is in its message.
fn explain_predicts(
    shapes: &[Shape],
    reloads: u8,
    steps: &[((u64, u8, i32), u8, u8)],
) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut next = shapes.iter().cycle();
        let mut scenario = Scenario::new(&next.next().unwrap().text()).await;
        for ((pause_ms, client, cells), event, more) in steps {
            scenario.advance_ms(*pause_ms);
            match event {
                event if *event < reloads => {
                    // The table's register tells by the time which numbers came later, and no two
                    // reloads of a process are in one nanosecond.
                    scenario.clock.advance(Nanos(1));
                    scenario.reload(&next.next().unwrap().text());
                }
                11 => scenario.exempt("api", "ip=192.0.2.1", 1),
                12 => scenario.order(OrderKind::Block, "api", "192.0.2.0/30", 1),
                _ => {}
            }
            let mut args = vec![
                ("ip", Value::Ipv4([192, 0, 2, *client].into())),
                ("cost", Value::Int32(*cells)),
            ];
            match more {
                0 => args.push(("plan", "gold".into())),
                1 => args.push(("user", "Alice".into())),
                2 => args.push(("user", "ALICE".into())),
                3 => args.push(("user", Value::Null)),
                _ => {}
            }
            let explanation = scenario.explain(&args);
            let answer = scenario.ask(&args).await;
            if let Some(difference) = difference(&explanation, &answer) {
                return Err(format!("{difference}: {explanation:#?} {answer:#?}"));
            }
        }
        Ok(())
    })
}

/// The first difference between an explanation and the answer to its message.
fn difference(explanation: &Explanation, answer: &Answer) -> Option<&'static str> {
    let decided = explanation.decided.as_ref().expect("all args are there");
    let var = |name: &str| answer.var(Scope::Transaction, name);
    let text = |name: &str| {
        let bytes = var(name)?.as_bytes().map(Vec::from)?;
        Some(String::from_utf8(bytes).unwrap())
    };
    if var("blocked") != Some(Value::Bool(decided.blocked)) {
        return Some("blocked");
    }
    if var("would_block") != Some(Value::Bool(decided.would_block)) {
        return Some("would_block");
    }
    let wait = match var("retry_after_ms") {
        Some(_) => number(answer, "retry_after_ms"),
        None => 0,
    };
    if decided.order.is_some() {
        return (wait > 0).then_some("wait of a client with an order");
    }
    let delay = var("delay_ms").map_or(0, |_| number(answer, "delay_ms"));
    if decided.delay_ms != delay {
        return Some("delay_ms");
    }
    if decided.rule == RuleKind::Limits && decided.retry_after_ms_if_asked != wait {
        return Some("retry_after_ms");
    }
    // A limit that is only observed gives the verdict where no limit in force does.
    if text("policy").is_some_and(|name| name.ends_with(".observe")) {
        return None;
    }
    if explanation.policy != text("policy") {
        return Some("policy");
    }
    (decided.reason.map(Reason::as_str) != text("reason").as_deref()).then_some("reason")
}
