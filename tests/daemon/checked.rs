//! `gcra-spoa check`, for programs that configure machines.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{directory, root};

/// For a pipeline: the text need not be a file yet, and each finding says where it is.
#[test]
fn a_text_is_checked_before_it_is_a_file_and_in_json() {
    let folder = directory();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("vip.txt"), "192.0.2.7\n").unwrap();
    let list = "[policy.a]\nlimits = \"5/s\"\nkey = [\"ip\"]\n[[policy.a.lists]]\nfile = \
                \"vip.txt\"\nlimits = \"9/s\"\n";
    let check = |args: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        command.arg("check").args(args).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let here = folder.path().to_str().unwrap();
    let (status, said, error) = check(&["-", "--relative-to", here], list);
    assert!(status == 0 && said.contains("\n- is valid: 1 policy, 0 warnings\n"), "{said}{error}");
    let (status, _, error) = check(&["-"], list);
    assert!(status == 1 && error.starts_with("gcra-spoa: -:4: "), "{error}");
    // The file may be built in one folder, and be for another.
    fs::create_dir(path("built")).unwrap();
    let built = path("built").join("gcra.toml");
    fs::write(&built, list).unwrap();
    let built = built.to_str().unwrap();
    assert_eq!(check(&[built], "").0, 1);
    assert_eq!(check(&[built, "--relative-to", here], "").0, 0);

    let findings = |args: &[&str], input: &str| {
        let (status, said, error) = check(&[args, &["--json"]].concat(), input);
        assert_eq!(error, "");
        let lines = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        (status, lines.collect::<Vec<_>>())
    };
    let wrong = "[policy.a]\nlimits = \"5\"\n[policy.b]\nlimit = \"5/s\"\n";
    let (status, found) = findings(&["-"], wrong);
    assert_eq!(status, 1);
    let at = |found: &Value| (found["kind"].to_string(), found["line"].as_u64());
    assert_eq!(at(&found[0]), ("\"mistake\"".to_owned(), Some(2)));
    assert_eq!(found[0]["file"], "-");
    assert!(found[0]["text"].as_str().unwrap().starts_with("'5' is not a"), "{found:?}");
    assert_eq!(found[0]["setting"], "policy.a.limits");
    assert_eq!(
        (&found[2]["setting"], &found[2]["right"]),
        (&"policy.b.limit".into(), &"limits".into())
    );
    let last = found.last().unwrap();
    assert_eq!((&last["valid"], &last["mistakes"]), (&false.into(), &(found.len() - 1).into()));
    let (status, found) = findings(&[built], "");
    assert_eq!((status, &found[0]["file"], &found[0]["line"]), (1, &built.into(), &4.into()));
    let (status, found) = findings(&["/none.toml"], "");
    assert_eq!((status, found[0]["line"].is_null()), (1, true));
    assert_eq!(found[0]["file"], "/none.toml");
    // A mistake in another file has the place in that file.
    fs::write(path("vip.txt"), "192.0.2.7\n\n192.0.2.0/33\n").unwrap();
    let (_, found) = findings(&["-", "--relative-to", here], list);
    assert_eq!(
        (&found[0]["file"], &found[0]["line"]),
        (&path("vip.txt").to_str().into(), &3.into())
    );
    // A name that looks like a place, and settings in tables and in lists of tables.
    let odd = path("a.toml:7: b.toml");
    fs::write(
        &odd,
        "[policy.a]\nlimits = [{ rate = \"5/s\", burst = \"7\" }]\nkey = \"ip\"\n\
         [[policy.a.lists]]\nfile = 5\nlimits = \"deny\"\n\
         [policy.a.overrides]\nSecret9 = \"5\"\n",
    )
    .unwrap();
    let (_, found) = findings(&[odd.to_str().unwrap()], "");
    let places = found.iter().filter(|it| it["kind"] == "mistake").map(|it| {
        assert_eq!(it["file"], odd.to_str().unwrap());
        (it["line"].as_u64().unwrap(), it["setting"].as_str().unwrap(), &it["right"])
    });
    let expected = [
        (2, "policy.a.limits.burst", &"7".into()),
        (3, "policy.a.key", &"[\"ip\"]".into()),
        (5, "policy.a.lists.file", &Value::Null),
        (8, "policy.a.overrides", &Value::Null),
    ];
    assert_eq!(places.collect::<Vec<_>>(), expected);
    let other = path("other.toml");
    fs::write(&other, "[policy.a]\nlimits = \"5/s\"\nkey = [\"src\"]\n").unwrap();
    let right = "[policy.a]\nlimits = \"5/s\"\nkey = [\"ip\"]\n";
    let (status, found) = findings(&["-", "--against", other.to_str().unwrap()], right);
    assert_eq!((status, &found[0]["kind"], &found[1]["valid"]), (0, &"note".into(), &true.into()));
    // A mistake that both files have is told once.
    let (_, found) = findings(&[built, "--against", built], "");
    assert_eq!(found.last().unwrap()["mistakes"], 1, "{found:?}");
    let (status, _, error) = check(&["-", "--relative-to", &format!("{here}/none")], right);
    assert_eq!(status, 2, "{error}");
    assert!(error.contains("/none, which is not a folder"), "{error}");
}

/// Programs write it into the file: it is right in that place and was meant, or nothing is said.
#[test]
fn what_would_be_right_is_no_example() {
    let folder = directory();
    let file = folder.path().join("gcra.toml");
    let right = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gcra-spoa"));
        let output = command.arg("check").arg(&file).arg("--json").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let first: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(first["kind"], "mistake", "{said}");
        first["right"].as_str().map(str::to_owned)
    };
    for (wrong, expected) in [
        ("limits = { rate = \"5/s\", burst = \"5\" }", Some("5")),
        ("limits = { rate = \"5/s\", burst = \"-5\" }", None),
        ("limits = { rate = \"10 /s\" }", Some("\"10/s\"")),
        ("limits = { rate = \"10 /s, burst 5\" }", None),
        ("limits = { rate = 5 }", None),
        ("limits = { count = 5, window = \"dya\" }", Some("\"day\"")),
        ("limits = { count = 5, window = \"daily Berlin\" }", Some("\"day Europe/Berlin\"")),
        ("limits = { count = 5, window = \"UTC day\" }", Some("\"day UTC\"")),
        ("limits = { count = 5, window = \"2 days\" }", None),
        ("limits = \"10 /s burst 5\"", Some("\"10/s burst 5\"")),
        ("limits = \"10\"", None),
        ("limits = \"5/s\"\nkey = \"ip\"", Some("[\"ip\"]")),
        ("limits = \"5/s\"\nkey = \"ip=src\"", None),
        ("limits = \"5/s\"\nkey = 5.5e", None),
        ("limits = \"5/s\"\nipv4_prefix = 33", None),
        ("limits = \"5/s\"\nlowercase = \"true\"", Some("true")),
        ("limits = \"5/s\"\nlowercase = \"yes\"", None),
        ("limits = \"5/s\"\nmode = \"obsrve\"", Some("\"observe\"")),
        ("limits = \"5/s\"\nmode = true", None),
        ("limits = \"5/s\"\nwhen = { plan = 5 }", Some("{ plan = \"5\" }")),
        ("limits = \"5/s\"\n[policy.a.overrides]\n192.0.2.1 = \"deny\"", Some("\"192.0.2.1\"")),
        ("limits = \"5/s\"\nmoed = \"observe\"", Some("mode")),
        ("limits = \"5/s\"\npenalty = { cells = 1, ceiling = 600 }", None),
        ("limits = \"5/s\"\npenalty = { cells = 1, ceiling = \"10 M\" }", Some("\"10m\"")),
    ] {
        assert_eq!(right(&format!("[policy.a]\n{wrong}\n")).as_deref(), expected, "{wrong}");
    }
    let answer = |answer| right(&format!("answer = {answer}\n[policy.a]\nlimits = \"5/s\"\n"));
    assert_eq!(answer("[\"retryafter\"]").as_deref(), Some("\"retry_after\""));
    assert_eq!(answer("\"retryafter\""), None);
}

/// HAProxy's user reads them, whatever the umask of the operator is.
#[test]
fn folders_that_are_made_are_readable() {
    let folder = directory();
    let file = folder.path().join("gcra.toml");
    fs::write(&file, "[policy.a]\nlimits = \"5/s\"\nkey = [\"ip\"]\n").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" check gcra.toml --print-haproxy p/q/r"]);
    command.arg(env!("CARGO_BIN_EXE_gcra-spoa")).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for made in ["p", "p/q", "p/q/r"] {
        let mode = fs::metadata(folder.path().join(made)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{made}");
    }
}

/// What Ansible runs before it puts a configuration in place, for the template of the role.
#[test]
fn the_role_for_ansible_checks_its_configuration() {
    let role = root().join("deploy/ansible/roles/gcra_spoa");
    let read = |name: &str| fs::read_to_string(role.join(name)).unwrap();
    let value = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    let limit = value(&read("defaults/main.yml"), "gcra_spoa_limit:");
    let template = read("templates/gcra-spoa.toml.j2");
    let folder = directory();
    let file = folder.path().join("source.toml");
    let check = value(&read("tasks/main.yml"), "validate: gcra-spoa");
    for (limit, is_right) in [(&*limit, true), ("7", false)] {
        fs::write(&file, template.replace("{{ gcra_spoa_limit }}", limit)).unwrap();
        let check = check.replace("/etc/gcra-spoa", folder.path().to_str().unwrap());
        let args = check.split(' ').map(|arg| arg.replace("%s", file.to_str().unwrap()));
        let output = Command::new(env!("CARGO_BIN_EXE_gcra-spoa")).args(args).output().unwrap();
        assert_eq!(output.status.success(), is_right, "{limit}: {output:?}");
    }
}
