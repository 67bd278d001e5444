//! The files with which HAProxy asks less.

use crate::file::tests::{SETTLED, api, good};

/// The .cfg that is printed for a policy.
fn printed(settings: &str) -> String {
    let all = good(&api(settings)).for_haproxy_that_asks_less().unwrap();
    let (_, file) = all.split_once("# ---- ask-less.cfg: the rest, a whole file\n").unwrap();
    file.to_owned()
}

/// The text of comments is looked at as one line.
fn assert_has(text: &str, lines: &[&str]) {
    let text = &text.replace("\n# ", " ");
    for line in lines {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_shipped_file_is_what_is_printed_for_its_policy() {
    let policy = "[policy.check-cost]\nlimits = \"100/s burst 20\"\nkey = [\"ip\"]\n\
                  cost = \"cost\"\n";
    let printed = good(policy).for_haproxy_that_asks_less().unwrap();
    let complete = good(&format!("{policy}unasked = 7\n")).for_haproxy_that_asks_less();
    assert_eq!(complete.unwrap(), printed, "it is what the policy is told to have");
    let shipped = include_str!("../../../../../haproxy/ask-less.cfg");
    assert!(printed.ends_with(&format!("a whole file\n{shipped}")), "{printed}");
    // Its SPOE configuration is a part of the shipped file, which is for remember.cfg, too.
    let asks = include_str!("../../../../../haproxy/spoe-ask-less.conf");
    let (asked, _) = printed.split_once("\n\n# ---- ").unwrap();
    for line in asked.lines().skip(1).filter(|line| !line.starts_with("    groups ")) {
        assert!(asks.lines().any(|shipped| shipped == line), "{line}");
    }
}

#[test]
fn a_slow_limit_is_remembered_until_its_bucket_is_full() {
    let file = printed("limits = \"5/h burst 20\"\nkey = [\"ip\"]");
    assert_has(
        &file,
        &[
            "Here k is 8, for the limit 5 per hour, up to 20 at once, for each ip (IPv6 by /64). \
             Its policy must have 'unasked = 7' and 'cost = \"cost\"'.\n",
            "A silent client must be remembered for 4h: 'expire' is as long, and 'size' is enough \
             for 145 new clients a second.\n",
            "stick-table type ipv6 size 2m expire 4h store gpc(3),gpc_rate(1,1000ms)\n",
            "in 720 seconds.\\n\" hdr Retry-After 720 if { sc_gpc_rate(0,0) gt 0 }",
        ],
    );
}

/// The smallest of several limits says how many requests may be unpaid, and the slowest how long
/// they are remembered. So do those of overrides.
#[test]
fn each_limit_and_override_counts() {
    let settings = "limits = [\"1000/s burst 100\", \"10/m burst 10\"]\nkey = [\"ip\"]\n\
                    [policy.api.overrides]\n\"192.0.2.1\" = \"1/h burst 5\"";
    let file = printed(settings);
    assert_has(&file, &["lt 2 }", "int(2)", "'unasked = 1'", "expire 5h", "gpc_rate(1,1ms)"]);
}

#[test]
fn the_policy_says_how_many_are_not_asked_about() {
    let of = |more: &str| {
        let settings = "limits = \"1/m burst 50\"\nkey = [\"ip\"]\ncost = \"cost\"\nunasked = 4\n";
        printed(&format!("{settings}{more}"))
    };
    // 50 less 2 x 4 in reserve, and less 2 x 4 that may be paid for late.
    let burst = "none of a client that keeps to a burst of 34.";
    let silent =
        "silent at one HAProxy process for 50m and busy at another may have up to 4 more.";
    assert_has(&of("asked_by = 2"), &["lt 5 }", "Here k is 5", burst, silent, "expire 50m "]);
    let passes = "passes, if HAProxy is not reloaded more often than by its 'reload_every'.";
    // 16 in reserve, and as many that may be paid for late, with the old process and the new one.
    // Of the 1440 in a day 16 are not allowed.
    let early = "none of a client that keeps to a burst of 18, and to 59.333 per hour.";
    let file = of("asked_by = 2\nreload_every = \"1d\"");
    assert_has(&file, &[passes, early, "must be remembered for 24h: ", "expire 24h "]);
}

#[test]
fn a_count_in_windows_is_remembered_for_a_window() {
    let file = printed("limits = { count = 100, window = \"day\" }\nkey = [\"ip\"]");
    let shown = ["lt 32 }", "expire 25h ", "gpc_rate(1,1000ms)", "Retry-After 900 "];
    assert_has(&file, &shown);
}

#[test]
fn what_does_not_pay_is_left_out() {
    // A refusal that is remembered for 2 ms would cost this limit more than its burst.
    let file = printed("limits = \"100000/s burst 100\"\nkey = [\"ip\"]");
    assert_has(&file, &["Here k is 32", "every-kth.cfg explains", "store gpc(3)\n"]);
    assert!(!file.contains("sc_gpc_rate"), "{file}");
    // And a reserve would leave no burst.
    let file = printed("limits = \"10/s burst 3\"\nkey = [\"ip\"]");
    assert_has(&file, &["send-spoe-group gcra api\n", "store gpc(1),gpc_rate(1,50ms)\n"]);
    assert!(!file.contains("sc_inc_gpc"), "{file}");
}

#[test]
fn haproxy_tracks_what_the_policy_counts() {
    let settings =
        "limits = \"10/s burst 20\"\nipv4_prefix = 24\nipv6_prefix = 48\nkey = [\"ip\"]";
    assert_has(&printed(settings), &["connection track-sc0 src,ipmask(24,48) table clients\n"]);
    let settings = "limits = \"10/s burst 20\"\nlowercase = true\nkey = [\"host\"]";
    let track = "http-request track-sc0 req.hdr(host),host_only,regsub('[.]+$',),lower,lower,\
                 sha2(256) table clients\n";
    let rule = "    http-request deny status 400 unless { req.fhdr(host) -m reg ";
    assert_has(&printed(settings), &[track, rule, "type binary len 32 size 1m"]);
}

/// Whatever the operator writes for it, a stick table of addresses would not track its strings.
#[test]
fn an_arg_that_has_no_usual_sample_is_tracked_by_its_hash() {
    for (more, lower) in [("", ""), ("lowercase = true\n", ",lower")] {
        let settings = format!("limits = \"10/s burst 20\"\nkey = [\"user\"]\n{more}cost = \"n\"");
        let all = good(&api(&settings)).for_haproxy_that_asks_less().unwrap();
        let track = format!("http-request track-sc0 EDIT-THIS{lower},sha2(256) table clients\n");
        let args = "args user=EDIT-THIS n=var(txn.cost)\n";
        let sample = "    # The sample of user, the same as behind 'args'. If it gives addresses, \
                      write ',ipmask(32,64)'";
        assert_has(&all, &[&track, args, "type binary len 32 size 1m", sample]);
    }
}

/// Nobody tracks a client in between that only its requests name.
#[test]
fn the_file_says_whom_an_old_process_forgets() {
    let notes = [
        "At a reload more than that may pass; the comment on 'track-sc0' says how many.",
        "and with HTTP/2 up to 4 more each second until that process ends",
        "write a short 'hard-stop-after' in 'global'",
    ];
    let of = |key: &str, more: &str| {
        let settings = format!("limits = \"9/s burst 50\"\nkey = [\"{key}\"]\n{more}");
        printed(&settings).replace("\n    # ", " ")
    };
    let unasked = "cost = \"cost\"\nunasked = 4\n";
    for key in ["key", "path", "host", "user"] {
        for reloads in ["", "reload_every = \"1d\"\n"] {
            assert_has(&of(key, &format!("{unasked}{reloads}")), &notes);
        }
    }
    assert!(!of("ip", unasked).contains("hard-stop-after"));
}

/// Or `check` would refuse what it has demanded.
#[test]
fn a_policy_can_have_what_its_file_demands() {
    for settings in [
        "limits = [\"1000/s burst 100\", \"10/m burst 10\"]\nobserve = \"9/s burst 7\"",
        "limits = \"9/s burst 20\"\nobserve = \"9/s burst 15\"",
        "limits = { count = 100, window = \"day\" }\nobserve = { count = 70, window = \"day\" }",
        "limits = \"9/s\"\noverrides = { \"192.0.2.1\" = \"unlimited\", \"::/64\" = \"8/s\" }",
        "limits = \"9/s\"\nmode = \"observe\"",
    ] {
        let settings = format!("key = [\"ip\"]\ncost = \"cost\"\n{settings}");
        let file = printed(&settings).replace("\n# ", " ");
        let (_, unasked) = file.split_once("must have 'unasked = ").unwrap();
        let (unasked, _) = unasked.split_once('\'').unwrap();
        good(&api(&format!("unasked = {unasked}\n{settings}")));
    }
}

#[test]
fn what_haproxy_cannot_count_is_refused() {
    let refused = |text: &str| good(text).for_haproxy_that_asks_less().unwrap_err();
    let two = "[policy.a]\nlimits = \"9/s\"\n[policy.b]\nlimits = \"9/s\"\n";
    assert_eq!(
        refused(two),
        "HAProxy can ask less about one policy, and there are 2; check a file with that policy \
         alone"
    );
    let scope = format!("scope = \"sess\"\n{}", api("limits = \"9/s\""));
    assert!(refused(&scope).contains("the scope is \"sess\" instead of \"txn\""));
    for (settings, why) in [
        ("limits = \"9/s\"\nkey = [\"ip\", \"path\"]", "its key must be one arg"),
        ("limits = \"9/s\"\nkey = [\"key\", \"else ip\"]", "without 'else'"),
        ("limits = \"9/s\"\nkey = [\"ip\"]\nwhen = { plan = \"gold\" }", "it has a 'when'"),
        ("limits = { rate = \"9/s\", key = [\"path\"] }\nkey = [\"ip\"]", "a key or numbers"),
        ("limits = \"9/s\"\nkey = [\"ip\"]\nmax_delay = \"2s\"", "it delays"),
        ("limits = { count = 20, window = \"month\" }\nkey = [\"ip\"]", "remember it for 31 days"),
        (SETTLED, "its requests are settled"),
        ("limits = \"unlimited\"\nkey = [\"ip\"]", "it has no limit"),
        ("limits = \"9/s burst 2\"\nkey = [\"ip\"]", "its burst is too small"),
        ("limits = \"1/d burst 30\"\nkey = [\"ip\"]", "must remember it for 30 days"),
        (
            "limits = \"100/s burst 40\"\nobserve = \"50/s burst 10\"\nkey = [\"ip\"]",
            "for its observe, unasked = 15 keeps 15 cells in reserve",
        ),
        (
            "limits = \"9/s\"\nobserve = { rate = \"9/s\", key = [\"path\"] }\nkey = [\"ip\"]",
            "a limit with a key or numbers of its own",
        ),
        (
            "limits = \"9/s\"\nkey = [\"ip\"]\noverrides = { \"192.0.2.1\" = \"deny\" }",
            "it has \"deny\", and a client that is denied would have requests that pass",
        ),
        (
            "limits = \"deny\"\nkey = [\"ip\"]\noverrides = { \"192.0.2.1\" = \"9/s\" }",
            "it has \"deny\", and a client that is denied would have requests that pass",
        ),
        (
            "limits = \"9/s\"\nkey = [\"ip\"]\nipv4_prefix = 24\n\
             overrides = { \"192.0.2.1\" = \"8/s\" }",
            "its override '192.0.2.1/32' is narrower than its groups",
        ),
    ] {
        let sentence = refused(&api(settings));
        let start = "HAProxy cannot ask less about policy 'api': ";
        assert!(sentence.starts_with(start) && sentence.contains(why), "{settings}: {sentence}");
    }
}
