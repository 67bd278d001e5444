//! The lines for a HAProxy that decides itself.

use std::path::Path;

use crate::file::tests::{SETTLED, api, good};

fn printed(text: &str) -> Result<String, String> {
    printed_for(text, "/etc/gcra-spoa.toml")
}

fn printed_for(text: &str, file: &str) -> Result<String, String> {
    let files = good(text).for_haproxy_in_process(Path::new(file))?;
    Ok(files.into_iter().map(|file| file.text).collect())
}

/// The lines with a question, and those that prepare one.
fn questions(text: &str) -> Vec<String> {
    let printed = printed(text).unwrap();
    let lines = printed.lines().map(str::trim).filter(|line| {
        !line.starts_with('#') && (line.contains("lua.gcra") || line.contains("txn.ask_"))
    });
    lines.map(|line| line.trim_start_matches("http-request ").to_owned()).collect()
}

#[test]
fn the_words_name_the_file_and_each_version_gets_them_in_its_way() {
    let printed = printed("[policy.api]\nlimits = \"9/s\"\nkey = [\"ip\"]\n").unwrap();
    for line in [
        "gcra.lua\" --table \"${GCRA_TABLE-/dev/shm/gcra-spoa.table}\" --config \
         /etc/gcra-spoa.toml\n"
            .to_owned(),
        "table} --config /etc/gcra-spoa.toml\"\n".to_owned(),
        "    http-request deny status 405 if { method CONNECT }\n".to_owned(),
    ] {
        assert!(printed.contains(&line), "{line} is not in\n{printed}");
    }
    let policies = "[policy.api]\nlimits = \"9/s\"\nkey = [\"ip\"]\n";
    let printed = printed_for(policies, "/etc/my file.toml").unwrap();
    assert!(printed.contains("--config EDIT-THIS\n"), "{printed}");
}

#[test]
fn the_only_value_of_the_only_policy_has_no_name() {
    let found = questions("[policy.api]\nlimits = \"9/s\"\nkey = [\"ip\"]\n");
    assert_eq!(found, ["set-var(txn.wait) src,hex,lua.gcra_ip"]);
    let found = questions("[policy.api]\nlimits = \"9/s\"\nkey = [\"tenant\"]\n");
    assert_eq!(
        found,
        [
            "set-var(txn.ask_tenant) EDIT-THIS",
            "set-var(txn.wait) str(),concat(,txn.ask_tenant),lua.gcra"
        ]
    );
}

#[test]
fn of_several_args_only_the_last_may_have_any_bytes() {
    let found = questions(
        "[policy.api]\nlimits = \"9/s\"\nkey = [\"tenant\", \"user\", \"ip\"]\ncost = \"n\"\n",
    );
    assert_eq!(
        found,
        [
            "set-var(txn.ask_n) int(1)",
            "set-var(txn.ask_tenant) EDIT-THIS,hex",
            "set-var(txn.ask_user) EDIT-THIS",
            "set-var(txn.wait) src,concat(|,txn.ask_n),concat(|,txn.ask_tenant),\
             concat(|,txn.ask_user),lua.gcra(api,ip,n:int,tenant:strhex,user)",
        ]
    );
}

#[test]
fn each_message_has_a_question_and_a_condition_to_be_written() {
    let found = questions(
        "[policy.a]\nlimits = \"9/s\"\nkey = [\"ip\"]\n[policy.b]\nlimits = \"9/s\"\nkey = \
         [\"ip\"]\n",
    );
    assert_eq!(
        found,
        [
            "set-var(txn.wait) src,hex,lua.gcra_ip(a,ip) if EDIT-THIS",
            "set-var(txn.wait) src,hex,lua.gcra_ip(b,ip) if EDIT-THIS",
        ]
    );
}

#[test]
fn what_haproxy_cannot_do_itself_is_refused() {
    for (text, why) in [
        (api(SETTLED), "is settled by responses, which only an agent can do"),
        (api("limits = \"9/s\"\nmax_delay = \"1s\""), "delays requests, which only an agent"),
        (
            api("limits = \"9/s\"\nkey = [\"a\", \"b\", \"c\", \"d\", \"e\"]"),
            "has 5 args, and lua.gcra can have 4; ask an agent about it over SPOE",
        ),
        (
            format!("scope = \"sess\"\n{}", api("limits = \"9/s\"")),
            "the scope is \"sess\" instead of \"txn\"",
        ),
    ] {
        let found = printed(&text).unwrap_err();
        assert!(found.contains(why), "{found}");
    }
}
