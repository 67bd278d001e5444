//! Command lines: what they mean, and what is wrong with them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use gcra_inspect::commands::check::Check;
use gcra_inspect::commands::store::StoreCommand;
use gcra_inspect::commands::table::TableCommand;
use gcra_policy::flags::Source;
use gcra_policy::policy_text::PolicyText;
use gcra_policy::{Policies, Sharing, WithoutStore};
use gcra_store::Password;
use jiff::Timestamp;
use spop_agent::Scope;

use super::args::CommandLine;
use super::config::AgentConfig;
use super::mistakes::in_one_sentence;
use super::{Command, Task, with_flags_for_words};
use crate::cli;

fn parse(args: &str) -> Result<AgentConfig, String> {
    let words = args.split_whitespace().map(|word| if word == "''" { "" } else { word });
    let args: Vec<OsString> = ["gcra-spoa"].into_iter().chain(words).map(Into::into).collect();
    let command = CommandLine::command();
    let args = CommandLine::try_parse_from(&args)
        .map_err(|error| in_one_sentence(&error, &command, &args))?;
    AgentConfig::from_args(args)
}

fn command(args: &str) -> Command {
    let args = ["gcra-spoa"].into_iter().chain(args.split(' ')).map(OsString::from);
    let Ok(Task::Run(command)) = cli::parse(args) else { panic!("no command") };
    *command
}

fn words(args: &str) -> String {
    let Source::Flags(policies) = parse(args).unwrap().policies else { panic!("not the flags") };
    policies.list[0].in_words()
}

fn error(args: &str) -> String {
    let error = parse(args).unwrap_err();
    assert!(!error.contains('\n'), "more than one line: {error}");
    error
}

/// A text that is written over several lines is not wrapped again, and a flag that takes half a
/// page is not found among the others.
#[test]
fn the_help_fits_a_terminal_of_80_columns() {
    fn look(command: &clap::Command, name: &str) {
        let text = |text: Option<&clap::builder::StyledStr>| text.map(ToString::to_string);
        let afters = [text(command.get_after_help()), text(command.get_after_long_help())];
        for line in afters.iter().flatten().flat_map(|after| after.lines()) {
            let columns = line.chars().count();
            assert!(columns <= 80, "{name}: {columns} columns: {line}");
        }
        for arg in command.get_arguments() {
            let help = text(arg.get_help()).unwrap_or_default();
            assert!(help.len() <= 160, "{name} {}: {help}", arg.get_id());
        }
        let about = text(command.get_about()).unwrap_or_default();
        assert!(about.len() <= 90, "{name}: {about}");
        for inner in command.get_subcommands() {
            look(inner, &format!("{name} {}", inner.get_name()));
        }
    }
    look(&CommandLine::command(), "gcra-spoa");
}

#[test]
fn the_definition_is_sound() {
    CommandLine::command().debug_assert();
}

#[test]
fn sizes_are_bytes_or_have_a_unit() {
    let config = parse("--rate 1/s").unwrap();
    assert_eq!((config.flags.max_frame_size, config.flags.buffers), (1 << 20, 256 << 20));
    for (text, bytes) in
        [("1048576", 1 << 20), ("2048K", 2 << 20), ("1M", 1 << 20), ("3G", 3 << 30)]
    {
        assert_eq!(parse(&format!("--rate 1/s --buffers {text}")).unwrap().flags.buffers, bytes);
    }
    for wrong in ["1023K", "0", "M", "+2M", "1.5G", "2m", "99999999999G", "256MB"] {
        let message = error(&format!("--rate 1/s --buffers {wrong}"));
        assert!(message.contains("such as 256M or 1G"), "{message}");
    }
    assert_eq!(parse("--rate 1/s --max-frame-size 65532").unwrap().flags.max_frame_size, 65_532);
    for wrong in ["255", "1048577", "64K"] {
        let message = error(&format!("--rate 1/s --max-frame-size {wrong}"));
        assert!(message.contains("from 256 to 1048576"), "{message}");
    }
}

#[test]
fn limits_in_words() {
    assert_eq!(
        words("--rate 100/s --burst 20 --key ip"),
        "100 per second, up to 20 at once, for each ip"
    );
    assert_eq!(
        words("--rate 5000/m"),
        "5000 per minute, up to 5000 at once, for each value of the message's args"
    );
    assert_eq!(
        words("--rate 10/s --key ip --cost n"),
        "10 per second, up to 10 at once, for each ip, with the cost in n"
    );
    assert_eq!(
        words("--rate deny --key ip,path"),
        "every request is blocked, for each ip and path"
    );
    assert_eq!(words("--rate unlimited --key ip"), "no request is blocked, for each ip");
}

/// The rows of `sentences.txt`: a command line, and a part of the sentence about it.
fn rows() -> impl Iterator<Item = (&'static str, String)> {
    let lines = || include_str!("sentences.txt").lines().filter(|line| !line.starts_with('#'));
    lines().enumerate().filter(|(_, line)| line.starts_with("gcra-spoa")).map(move |(at, line)| {
        let said = lines().skip(at + 1).take_while(|line| line.starts_with(' '));
        (line, said.map(str::trim).collect::<Vec<_>>().join(" "))
    })
}

#[test]
fn every_wrong_command_line_is_one_clear_sentence() {
    let wrong = |(line, said): (&str, String)| {
        assert!(!said.is_empty(), "{line}: no sentence");
        let in_an_hour = Timestamp::now() + Duration::from_secs(3600);
        let args = line.replace("IN-AN-HOUR", &in_an_hour.to_string());
        let args = args.strip_prefix("gcra-spoa").unwrap_or_default();
        let Err(sentence) = parse(args) else { return Some(format!("{line}\n    no mistake")) };
        // A sentence has one line, and no word of the parser.
        let has = ["\n", "argument '", "<", "required", "provided"];
        let is_wrong = !sentence.contains(&said) || has.iter().any(|it| sentence.contains(it));
        is_wrong.then(|| format!("{line}\n    {sentence}\n  not\n    {said}"))
    };
    assert!(rows().count() > 100, "the file has been read");
    let wrong: Vec<_> = rows().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_flags_of_a_store_share_the_limit() {
    let policies = |args: &str| {
        let Source::Flags(policies) = parse(args).unwrap().policies else { panic!("a file") };
        *policies
    };
    let local = policies("--rate 1/s");
    assert_eq!((local.list[0].shared, local.store), (None, None));

    let least = policies("--rate 1/s --store redis://store.example");
    assert_eq!(least.list[0].shared, Some(Sharing::default()));
    let store = least.store.unwrap();
    assert_eq!((&*store.url_text, store.wait.as_millis()), ("redis://store.example", 20));

    let most = policies(
        "--rate 1/s --store rediss://u@a --store-password-file /none --store-ca /none/ca \
         --store-wait 1s --without-store open",
    );
    let without_store = WithoutStore::Open { for_: Duration::from_secs(10) };
    assert_eq!(most.list[0].shared, Some(Sharing { without_store, at_once: false }));
    let store = most.store.unwrap();
    assert_eq!(store.base.password, Password::File("/none".into()));
    assert_eq!(store.base.authorities.as_deref(), Some(Path::new("/none/ca")));
    assert_eq!(store.config().timeout, Duration::from_secs(1));
    let [password, ca] = &most.warnings[..] else { panic!() };
    assert!(password.starts_with("cannot read the password file /none: "), "{password}");
    assert!(ca.starts_with("cannot read the certificate file /none/ca: "), "{ca}");

    let [user] = &policies("--rate 1/s --store redis://gcra@a").warnings[..] else { panic!() };
    assert!(user.starts_with("the address of the store names the user 'gcra' and"), "{user}");

    let variable = policies("--rate 1/s --store redis://a --store-password-env P_1");
    assert_eq!(variable.store.unwrap().base.password, Password::Variable("P_1".to_owned()));
}

#[test]
fn the_limits_of_flags_are_made_again_however_they_are_shared() {
    for (args, shown) in [
        ("", ""),
        (" --key user --key ip --cost n", " --key user,ip --cost n"),
        (" --store redis://a", " --store URL"),
        (" --store redis://a --without-store share", " --store URL"),
        (" --store redis://a --without-store closed", " --store URL --without-store closed"),
        (
            " --store rediss://u@a --store-ca c --store-password-env P --store-wait 7ms",
            " --store URL",
        ),
    ] {
        let config = parse(&format!("--rate 3/s{args}")).unwrap();
        let Source::Flags(policies) = config.policies else { panic!("not the flags") };
        let origin = policies.origin.as_deref().unwrap();
        let PolicyText::Flags(flags) = origin else { panic!("a file") };
        assert_eq!(flags.to_string(), format!("--rate 3/s --burst 3{shown}"));
        let again = origin.policies().unwrap().unwrap();
        assert_eq!(again.limits_digest, policies.limits_digest, "{args}");
        assert_eq!(again.origin, policies.origin, "{args}");
        let password = |policies: &Policies| {
            policies.store.as_ref().map(|store| (store.base.password.clone(), store.wait))
        };
        assert_eq!(password(&again), password(&policies), "{args}");
    }
}

#[test]
fn a_store_to_check_is_named_or_in_a_file() {
    let check = |args: &str| match command(&format!("store check {args}")) {
        Command::Store(StoreCommand::Check(check)) => check,
        other => panic!("{other:?}"),
    };
    let of_file = check("--config x.toml");
    assert_eq!((of_file.config.as_deref(), of_file.json), (Some(Path::new("x.toml")), false));
    assert!(of_file.store.settings().unwrap().is_none());
    let of_flags = check("--json --store redis+cluster://a,b --store-password-env P");
    let settings = of_flags.store.settings().unwrap().unwrap();
    assert!(of_flags.json);
    assert_eq!(settings.base.least_replicas, 1, "as an agent does");
    assert_eq!(settings.base.password, Password::Variable("P".to_owned()));
}

#[test]
fn times_have_a_unit_or_the_units_that_they_always_had() {
    let times = |args: &str| {
        let config = parse(&format!("--rate 1/s {args}")).unwrap();
        (config.drain.as_millis(), config.flags.busy_poll.as_micros())
    };
    assert_eq!(times("--drain 4 --busy-poll 50"), (4000, 50));
    assert_eq!(times("--drain 250ms --busy-poll 1ms"), (250, 1000));
    assert_eq!(times("--drain 5m --busy-poll 0us"), (300_000, 0));
}

#[test]
fn help_and_version_are_words_too() {
    for (words, flags) in [
        ("help", "--help"),
        ("version", "--version"),
        ("help top", "top --help"),
        ("help table info", "table info --help"),
        ("table help", "table --help"),
        ("table help info", "table info --help"),
        // These have arguments of their own.
        ("name help", "name help"),
        ("check help", "check help"),
        ("--rate help", "--rate help"),
    ] {
        let split = |text: &str| -> Vec<OsString> {
            ["gcra-spoa"].into_iter().chain(text.split(' ')).map(Into::into).collect()
        };
        assert_eq!(with_flags_for_words(split(words)), split(flags), "{words}");
    }
}

#[test]
fn localhost_is_an_address() {
    let admin = parse("--rate 1/s --admin localhost:9101").unwrap().flags.admin.unwrap();
    assert_eq!(admin.to_string(), "127.0.0.1:9101");
}

#[test]
fn a_file_is_named_with_or_without_its_flag() {
    for args in ["check x.toml", "check --config x.toml", "check x.toml --print-haproxy"] {
        let Command::Check(Check { config, .. }) = command(args) else { panic!("no check") };
        assert_eq!(config.path(), Path::new("x.toml"));
    }
}

#[test]
fn a_key_may_begin_with_a_minus() {
    let Command::Table(TableCommand::Reset(reset)) = command("table reset -- -abc") else {
        panic!("no reset")
    };
    assert_eq!(reset.keys[0].text, "-abc");
}

#[test]
fn an_agent_on_inherited_sockets_drains_only_with_the_flag() {
    let drain = |args: &str| parse(args).unwrap().drain.as_secs();
    assert_eq!(drain("--rate 1/s"), 3);
    assert_eq!(drain("--rate 1/s --listen inherited"), 0);
    assert_eq!(drain("--rate 1/s --listen inherited --drain 2"), 2);
}

#[test]
fn defaults() {
    let config = parse("--rate 100/s").unwrap();
    assert_eq!(config.flags.listen, ["127.0.0.1:9000".parse().unwrap()]);
    assert_eq!(config.flags.slots, None);
    assert_eq!(config.flags.threads.get(), 1);
    let Source::Flags(policies) = config.policies else { panic!("not the flags") };
    assert_eq!(policies.list[0].limits().map(|limit| limit.burst()).collect::<Vec<_>>(), [100]);
    assert_eq!(
        (policies.answers.blocked.as_str(), policies.answers.scope),
        ("blocked", Scope::Transaction)
    );
}
