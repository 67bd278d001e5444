//! The policies that agents keep beside the table (`<table>.policies`), and commands that need to
//! be told nothing.

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use spop_codec::Value;
use tempfile::TempDir;

use crate::support::spop::Spop;
use crate::support::{Agent, Process, agent_binary, directory, output_beside_agents, wait_until};

struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { directory: directory() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    fn start(&self, flags: &[&str]) -> Agent {
        Agent::start(&self.path("table"), flags)
    }

    fn kept(&self) -> PathBuf {
        self.path("table.policies")
    }

    fn output(&self, args: &[&str]) -> Output {
        let mut command = Command::new(agent_binary());
        output_beside_agents(command.args(args).arg("--table").arg(self.path("table")))
    }

    /// The output of a command on both outputs, notes first, and its exit status.
    fn said(&self, args: &[&str]) -> (String, i32) {
        let output = self.output(args);
        let text = [output.stderr, output.stdout].concat();
        (String::from_utf8(text).unwrap(), output.status.code().unwrap())
    }
}

fn ip(text: &str) -> Value<'static> {
    text.parse::<IpAddr>().unwrap().into()
}

const COMMANDS: [&[&str]; 5] = [
    &["explain", "ip=192.0.2.7"],
    &["table", "get", "192.0.2.7"],
    &["table", "reset", "192.0.2.7"],
    &["exempt", "--for", "1h", "192.0.2.7"],
    &["name", "192.0.2.7"],
];

#[test]
fn commands_know_the_flags_of_agents() {
    let scene = Scene::new();
    let agent = scene.start(&["--rate", "2/d", "--key", "user,else ip", "--cost", "n"]);
    let mut spop = Spop::connect(&agent.address);
    let args = [("ip", ip("192.0.2.7")), ("path", "/".into())];
    assert_eq!(spop.allowed(&args, 5), 2);
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7", "n=int64:1"]);
    assert!(text.starts_with("policy 'default' decides: a request now is blocked"), "{text}");
    let (text, status) = scene.said(&["table", "get", "ip=192.0.2.7"]);
    assert!(text.starts_with("ip=192.0.2.7: blocked; ") && status == 0, "{text}");
    let (text, status) = scene.said(&["table", "reset", "192.0.2.7"]);
    let right = "the table has a bucket for ip=192.0.2.7, and none for 192.0.2.7 (as user=192.0.";
    assert!(text.contains(right) && status == 1, "{text}");
    let (text, status) = scene.said(&["table", "reset", "ip=192.0.2.7"]);
    assert!(text.contains(" was forgiven") && status == 0, "{text}");
    assert_eq!(spop.allowed(&args, 5), 2);
    let (text, status) = scene.said(&["exempt", "--for", "1h", "ip=192.0.2.7"]);
    let table = scene.path("table");
    let end =
        format!("; to end it: gcra-spoa exempt --end --table {} ip=192.0.2.7\n", table.display());
    assert!(text.ends_with(&end), "{text}");
    assert_eq!(status, 0);
    assert_eq!(scene.said(&["name", "ip=192.0.2.7"]).0, "else:192.0.2.7\n");
    let (text, _) = scene.said(&["table", "info"]);
    let flags = "\nlimit: --rate 2/d --burst 2 --key user,else ip --cost n, by the flags";
    assert!(text.contains(flags), "{text}");
}

#[test]
fn commands_know_the_text_that_agents_have_read() {
    let scene = Scene::new();
    let config = |limit: &str| {
        format!(
            "[policy.api]\nlimits = \"{limit}\"\nkey = [\"ip\"]\n\
             [[policy.api.lists]]\nfile = \"partners.txt\"\nlimits = \"9/d\"\n"
        )
    };
    let file = scene.write("gcra.toml", &config("3/d"));
    scene.write("partners.txt", "192.0.2.99\n");
    let agent = scene.start(&["--config", &file]);
    let mut spop = Spop::connect(&agent.address);
    let blocked = |spop: &mut Spop| {
        (0..20).position(|_| {
            matches!(&spop.ask(&[("api", &[("ip", ip("192.0.2.7"))])])[..], [(_, _, true)])
        })
    };
    assert_eq!(blocked(&mut spop), Some(3));
    // Neither what was not reloaded nor what is gone makes a difference.
    scene.write("gcra.toml", &config("5/d"));
    fs::remove_file(scene.path("partners.txt")).unwrap();
    let (text, status) = scene.said(&["table", "get", "--policy", "api", "192.0.2.7"]);
    assert!(text.starts_with("192.0.2.7: policy 'api', 3 per day, up to 3"), "{text}");
    assert_eq!(status, 0);
    let (text, _) = scene.said(&["explain", "--message", "api", "ip=192.0.2.99"]);
    let list = scene.path("partners.txt");
    assert!(text.contains(&format!("192.0.2.99, from {}:1: 9 per day", list.display())), "{text}");
    let (text, status) = scene.said(&["table", "get", "--policy", "web", "192.0.2.7"]);
    let none = format!("there is no policy 'web' in {file}; it has api");
    assert!(text.contains(&none) && status == 2, "{text}");

    scene.write("partners.txt", "");
    assert_eq!(scene.said(&["reload", &file]).1, 0);
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("5 per day, up to 5 at once"), "{text}");
    assert_eq!(scene.said(&["table", "reset", "192.0.2.7"]).1, 0);
    assert_eq!(blocked(&mut spop), Some(5));
    // The command line is still obeyed.
    let other = scene.write("other.toml", &config("7/d"));
    let (text, _) = scene.said(&["explain", "--config", &other, "ip=192.0.2.7"]);
    assert!(text.contains("7 per day") && text.contains("has other limits than those"), "{text}");
}

/// The policies have had another key, by which a client is exempt.
#[test]
fn an_exemption_by_a_former_key_is_ended_by_its_key() {
    let scene = Scene::new();
    let config = |prefix: u8| {
        format!("[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\nipv4_prefix = {prefix}\n")
    };
    let file = scene.write("gcra.toml", &config(24));
    let agent = scene.start(&["--config", &file]);
    let mut spop = Spop::connect(&agent.address);
    let mut allowed = |client: &str, most| {
        let args = [("ip", ip(client))];
        let mut is_allowed = || matches!(&spop.ask(&[("api", &args)])[..], [(_, _, false)]);
        (0..most).filter(|_| is_allowed()).count()
    };
    assert_eq!(allowed("192.0.2.7", 9), 3);
    assert_eq!(scene.said(&["exempt", "--for", "1h", "198.51.100.7"]).1, 0);
    scene.write("gcra.toml", &config(32));
    assert_eq!(scene.said(&["reload", &file]).1, 0);
    assert_eq!(allowed("192.0.2.7", 9), 3, "it begins anew");
    let (text, status) = scene.said(&["exempt", "--end", "198.51.100.7"]);
    assert!(
        text.contains("the exemption of 198.51.100.0/24, from before") && status == 0,
        "{text}"
    );
}

#[test]
fn agents_that_differ_are_named_and_the_most_decide() {
    let scene = Scene::new();
    let file = scene.write("gcra.toml", "[policy.api]\nlimits = \"3/d\"\nkey = [\"ip\"]\n");
    let old = [scene.start(&["--config", &file]), scene.start(&["--config", &file])];
    scene.write("gcra.toml", "[policy.api]\nlimits = \"4/d\"\nkey = [\"ip\"]\n");
    let new = scene.start(&["--config", &file]);
    let [one, two] = old.each_ref().map(|agent| agent.process.id());
    let words = [
        "3 per day, up to 3 at once".to_owned(),
        "have different limits: ".to_owned(),
        format!("agent {} has the limits of {file} as it was ", new.process.id()),
        format!("; this is about agents {} and {}", one.min(two), one.max(two)),
    ];
    // On a busy machine one of them may count as dead for a while.
    wait_until(&format!("two of three decide: {words:?}"), || {
        let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
        words.iter().all(|words| text.contains(words))
    });
    let [first, second] = old;
    first.stop();
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("4 per day, up to 4 at once"), "the newest of two: {text}");
    second.stop();
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("4 per day") && !text.contains("different limits"), "{text}");
    scene.write("gcra.toml", "[policy.api]\nlimits = \"5/d\"\nkey = [\"ip\"]\n");
    assert_eq!(scene.said(&["reload", &file]).1, 0);
    // On a busy machine, `reload` may have taken the agent for a dead one.
    wait_until("the agent follows", || {
        scene.said(&["explain", "ip=192.0.2.7"]).0.contains("5 per day")
    });
    let kept = fs::read_to_string(scene.kept()).unwrap();
    assert!(["3/d", "4/d", "5/d"].iter().all(|limit| kept.contains(limit)), "{kept}");
    new.stop();
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("5 per day") && text.contains("no agent uses the table"), "{text}");
}

/// A user who can read the table was able to read the configuration.
#[test]
fn only_the_user_of_the_table_can_read_it_and_no_password_is_in_it() {
    let scene = Scene::new();
    let (password, salt) = ("open-sesame-0123456789", "0123456789abcdef-and-more");
    scene.write("password", password);
    scene.write("salt", salt);
    let file = scene.write(
        "gcra.toml",
        "[store]\nurl = \"redis://127.0.0.1:1\"\npassword_file = \"password\"\n\
         salt_file = \"salt\"\n[policy.api]\nlimits = \"3/d\"\nkey = [\"key\"]\nshared = true\n\
         [policy.api.overrides]\n\"sk_live_0123456789\" = \"9/d\"\n",
    );
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let _agent = scene.start(&["--config", &file]);
    let text = fs::read_to_string(scene.kept()).unwrap();
    assert!(text.contains("sk_live_0123456789"));
    assert!(!text.contains(password) && !text.contains(salt));
    let (kept, table) =
        (fs::metadata(scene.kept()).unwrap(), fs::metadata(scene.path("table")).unwrap());
    assert_eq!((kept.mode() & 0o7777, kept.uid()), (0o600, table.uid()));
    assert_eq!(table.mode() & 0o7777, 0o600, "no other table is used");
}

#[test]
fn what_others_could_have_written_is_refused_and_mended() {
    let scene = Scene::new();
    let agent = scene.start(&["--rate", "3/d"]);
    let good = fs::read(scene.kept()).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    // The agent writes the file anew as soon as it sees another one; it must not see these.
    agent.process.signal(rustix::process::Signal::STOP);
    let put = |bytes: &[u8], mode: u32| {
        fs::remove_file(scene.kept()).unwrap();
        fs::write(scene.kept(), bytes).unwrap();
        fs::set_permissions(scene.kept(), Permissions::from_mode(mode)).unwrap();
    };
    let refused = |why: &str| {
        for command in COMMANDS {
            let (text, status) = scene.said(command);
            assert!(text.contains(why), "{command:?}: {text}");
            assert!(text.contains("name their file with --config"), "{text}");
            assert_eq!((text.lines().count(), status), (1, 1), "{text}");
        }
    };
    for damaged in [&flipped[..], &good[..good.len() - 1], &good[..30]] {
        put(damaged, 0o600);
        refused("is damaged, or belongs to another table");
    }
    for foreign in [&b""[..], b"gcra-spoa policies 2 ", b"gcra-spoa policies 4 ", b"{}"] {
        put(foreign, 0o600);
        refused("is not a file that agents of this version have written");
    }
    put(&good, 0o620);
    refused("can be written by others");
    fs::remove_file(scene.kept()).unwrap();
    fs::write(scene.path("good"), &good).unwrap();
    symlink(scene.path("good"), scene.kept()).unwrap();
    refused("is a link, and agents write a file");
    fs::remove_file(scene.kept()).unwrap();
    fs::create_dir(scene.kept()).unwrap();
    refused("is not a regular file");
    fs::remove_dir(scene.kept()).unwrap();
    fs::write(scene.kept(), &good).unwrap();
    put(&good, 0o600);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(scene.kept(), Some(1234), None).unwrap();
        refused("belongs to the user 1234, and the table to the user 0");
    }
    put(&flipped, 0o600);
    agent.process.signal(rustix::process::Signal::CONT);
    wait_until("the agent has written it anew", || scene.said(COMMANDS[0]).1 == 0);
}

#[test]
fn a_file_that_was_removed_comes_back_and_a_resize_keeps_it() {
    let scene = Scene::new();
    let agent = scene.start(&["--rate", "3/d"]);
    fs::remove_file(scene.kept()).unwrap();
    wait_until("it is there again", || scene.said(COMMANDS[0]).1 == 0);
    assert_eq!(scene.said(&["table", "resize", "--slots", "8192"]).1, 0);
    for command in COMMANDS {
        let (text, _) = scene.said(command);
        assert!(!text.contains("not known"), "{command:?}: {text}");
    }
    agent.stop();
    fs::remove_file(scene.kept()).unwrap();
    for command in COMMANDS {
        let (text, status) = scene.said(command);
        assert!(text.contains(" are not known; name their file with --config"), "{text}");
        assert_eq!(status, 2, "{command:?}");
    }
}

#[test]
fn a_configuration_that_is_too_large_is_read_from_its_file() {
    let scene = Scene::new();
    // Comments count, too.
    let list = format!("partner-7\n{}", format!("# {}\n", "x".repeat(1000)).repeat(4300));
    assert!(list.len() > 4 << 20);
    scene.write("list.txt", &list);
    let file = scene.write(
        "gcra.toml",
        "[policy.api]\nlimits = \"3/d\"\nkey = [\"key\"]\n\
         [[policy.api.lists]]\nfile = \"list.txt\"\nlimits = \"9/d\"\n",
    );
    let agent = scene.start(&["--config", &file]);
    assert!(fs::metadata(scene.kept()).unwrap().len() < 1024);
    let (text, status) = scene.said(&["explain", "key=partner-7"]);
    let note = format!("has more than 4 MiB with its lists, so {file} is read as it is now");
    assert!(text.contains(&note) && text.contains("9 per day") && status == 0, "{text}");
    assert!(!text.contains("its limits are others"), "{text}");
    scene.write("list.txt", "");
    let (text, _) = scene.said(&["explain", "key=partner-7"]);
    assert!(text.contains(&format!("{note}; its limits are others")), "{text}");
    // The agent knows which clients had other limits, and the file has no space to say it.
    wait_until("the file is reloaded", || scene.said(&["reload", &file]).1 == 0);
    let (text, status) = scene.said(&["table", "get", "partner-7"]);
    let unseen = "a configuration that was in force before was too large to be kept beside";
    assert!(text.contains(unseen) && status == 1, "{text}");
    agent.stop();
    let agent = scene.start(&["--config", &file]);
    let warned = "1 configuration that were in force before were too large";
    let warned = warned.replace("were in force before were", "was in force before was");
    assert!(agent.process.lines().iter().any(|line| line.contains(&warned)));
}

/// The file is a whole one at every moment, whatever its writers are killed in the middle of.
#[test]
fn a_writer_that_is_killed_leaves_a_whole_file() {
    let scene = Scene::new();
    let list: String = (0..5_000).map(|n| format!("partner-{n}\n")).collect();
    scene.write("list.txt", &list);
    let config = |limit: usize| {
        let text = format!(
            "[policy.api]\nlimits = \"{limit}/d\"\nkey = [\"ip\"]\n\
             [[policy.api.lists]]\nfile = \"list.txt\"\nlimits = \"99/d\"\n"
        );
        scene.write(&format!("{limit}.toml"), &text)
    };
    let stays = scene.start(&["--config", &config(7)]);
    let mut is_written = 0;
    let beside = scene.path("table.policies.new");
    let inode = || fs::metadata(scene.kept()).unwrap().ino();
    for attempt in 1..100_u64 {
        // On a busy machine a writer needs longer than the longest pause of the first attempts.
        if attempt > 15 && is_written > 0 {
            break;
        }
        let file = config(100 + usize::try_from(attempt).unwrap());
        let mut command = Command::new(agent_binary());
        command.args(["--listen", "127.0.0.1:0", "--config", &file, "--table"]);
        // The file that the writer before it has left is taken over; but then nothing shows when
        // it begins.
        let (_, before) = (fs::remove_file(&beside), inode());
        let mut killed = Process::start("killed", command.arg(scene.path("table")));
        wait_until("it writes", || beside.exists() || inode() != before);
        // At another moment each time.
        thread::sleep(Duration::from_millis((attempt * attempt / 4).min(1000)));
        killed.kill();
        let text = fs::read_to_string(scene.kept()).unwrap();
        is_written += usize::from(text.contains(&format!("\\\"{}/d\\\"", 100 + attempt)));
        let (text, status) = scene.said(&["table", "get", "192.0.2.7"]);
        assert!(text.contains("policy 'api': no bucket") && status == 1, "{text}");
    }
    assert!(is_written > 0, "no writer was done before it was killed");
    stays.stop();
}

/// Whether `explain` says this about a client, notes included.
fn explains(scene: &Scene, words: &str) -> bool {
    scene.said(&["explain", "ip=192.0.2.7"]).0.contains(words)
}

#[test]
fn an_agent_that_was_killed_is_not_counted_as_one_of_those_that_decide() {
    let scene = Scene::new();
    let _kept = scene.start(&["--rate", "1/h", "--key", "ip"]);
    let killed = ["2/h", "2/h"].map(|rate| scene.start(&["--rate", rate, "--key", "ip"]));
    wait_until("most agents have it", || explains(&scene, "2 per hour"));
    for mut agent in killed {
        agent.process.kill();
    }
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("1 per hour") && !text.contains("different limits"), "{text}");
}

#[test]
fn without_agents_the_last_limits_in_force_answer() {
    let scene = Scene::new();
    let mut last = scene.start(&["--rate", "5/h", "--key", "ip"]);
    let mut killed = scene.start(&["--rate", "6/h", "--key", "ip"]);
    killed.process.kill();
    assert!(last.process.stop().success());
    assert!(explains(&scene, "6 per hour"), "it came into force after the other");
    // There and back, each killed.
    for rate in ["5/m", "6/m", "5/m"] {
        let mut agent = scene.start(&["--rate", rate, "--key", "ip"]);
        agent.process.kill();
    }
    assert!(explains(&scene, "5 per minute"));
}

/// An agent that cannot read what was in force before says what follows from that.
#[test]
fn clients_begin_with_no_debts_where_the_file_is_lost_and_the_log_says_so() {
    let scene = Scene::new();
    let allowed = |rate: &str, wanted: usize| {
        let agent = scene.start(&["--rate", rate, "--key", "ip"]);
        let mut spop = Spop::connect(&agent.address);
        assert_eq!(spop.allowed(&[("ip", ip("192.0.2.7"))], 20), wanted, "{rate}");
        let mut lines = agent.process.lines().into_iter();
        let warning = lines.find(|line| line.contains("clients begin with no debts under limits"));
        agent.stop();
        warning
    };
    assert_eq!(allowed("5/d", 5), None, "a new table");
    assert_eq!(allowed("7/d", 2), None);
    fs::remove_file(scene.kept()).unwrap();
    let warning = allowed("9/d", 9).unwrap();
    assert!(warning.contains("there is no file ") && warning.contains("table.policies, so"));
    fs::write(scene.kept(), "x").unwrap();
    let warning = allowed("11/d", 11).unwrap();
    assert!(warning.contains("is not a file that agents of this version have written, so"));
    assert_eq!(allowed("12/d", 1), None);
}

/// So has the second of two agents that start at once, before the first has written the file.
#[test]
fn a_table_without_debts_has_none_to_lose() {
    let scene = Scene::new();
    let is_warned = || {
        fs::remove_file(scene.kept()).unwrap();
        let agent = scene.start(&["--rate", "5/d", "--key", "ip"]);
        let is_charged = Spop::connect(&agent.address).allowed(&[("ip", ip("192.0.2.7"))], 1) == 1;
        let lines = agent.process.lines();
        agent.stop();
        (is_charged, lines.iter().any(|line| line.contains("clients begin with no debts")))
    };
    scene.start(&["--rate", "5/d", "--key", "ip"]).stop();
    assert_eq!(is_warned(), (true, false), "nobody has asked");
    assert_eq!(is_warned(), (true, true), "a client owes");
}

#[test]
fn agents_with_the_same_limits_in_other_words_write_once_each() {
    let scene = Scene::new();
    let text = "[policy.api]\nlimits = \"5/h\"\nkey = [\"ip\"]\n";
    let files = ["a", "b"].map(|name| scene.write(name, &format!("# {name}\n{text}")));
    let _agents = files.each_ref().map(|file| scene.start(&["--config", file]));
    let inode = || fs::metadata(scene.kept()).unwrap().ino();
    let before = inode();
    // Agents look once a second.
    thread::sleep(Duration::from_secs(4));
    assert_eq!(inode(), before);
}

/// One of them has had what the other one has never had, and tells it.
#[test]
fn agents_with_different_pasts_write_once_each() {
    let scene = Scene::new();
    let config =
        |burst: u8| format!("[policy.api]\nlimits = \"3/d burst {burst}\"\nkey = [\"ip\"]\n");
    let file = scene.write("gcra.toml", &config(3));
    let one = scene.start(&["--config", &file]);
    let mut spop = Spop::connect(&one.address);
    assert_eq!(spop.ask(&[("api", &[("ip", ip("192.0.2.7"))])]).len(), 1);
    scene.write("gcra.toml", &config(4));
    wait_until("the file is reloaded", || scene.said(&["reload", &file]).1 == 0);
    let other = scene.start(&["--config", &file]);
    let is_told = || scene.said(COMMANDS[0]).0.contains("(a debt from before the limits were");
    assert!(is_told());
    for _ in 0..2 {
        fs::remove_file(scene.kept()).unwrap();
        wait_until("the file tells it again", || scene.kept().exists() && is_told());
        // The other agent may write once more, whenever its turn comes.
        let inode = || fs::metadata(scene.kept()).unwrap().ino();
        let is_written_again = |_: &u8| {
            let before = inode();
            thread::sleep(Duration::from_secs(4));
            inode() != before
        };
        assert!((0..2).take_while(is_written_again).count() < 2, "they go on writing");
    }
    drop(one);
    fs::remove_file(scene.kept()).unwrap();
    wait_until("the other one tells it, too", || scene.kept().exists() && is_told());
    other.stop();
}

#[test]
fn an_agent_of_a_table_that_was_removed_leaves_the_file_to_the_new_one() {
    let scene = Scene::new();
    let _detached = scene.start(&["--rate", "5/m", "--key", "ip"]);
    fs::remove_file(scene.path("table")).unwrap();
    let _new = scene.start(&["--rate", "6/m", "--key", "ip"]);
    wait_until("the new agent has written", || explains(&scene, "6 per minute"));
    let inode = || fs::metadata(scene.kept()).unwrap().ino();
    let before = inode();
    thread::sleep(Duration::from_secs(4));
    assert!(inode() == before && explains(&scene, "6 per minute"));
}

#[test]
fn whatever_stands_in_the_place_of_the_new_file_is_removed() {
    let make: [fn(&PathBuf); 3] = [
        |path| symlink("/dev/null", path).unwrap(),
        |path| {
            fs::write(path, "").unwrap();
            fs::hard_link(path, path.with_extension("second")).unwrap();
        },
        |path| {
            fs::write(path, "").unwrap();
            // Nobody; only root can do this.
            let _ = std::os::unix::fs::chown(path, Some(65_534), None);
        },
    ];
    for make in make {
        let scene = Scene::new();
        make(&scene.path("table.policies.new"));
        let _agent = scene.start(&["--rate", "6/h", "--key", "ip"]);
        assert!(explains(&scene, "6 per hour"));
    }
}

#[test]
fn a_file_with_a_second_name_or_another_mode_is_written_again() {
    let scene = Scene::new();
    let _agent = scene.start(&["--rate", "6/h", "--key", "ip"]);
    fs::hard_link(scene.kept(), scene.path("second")).unwrap();
    let (text, _) = scene.said(&["explain", "ip=192.0.2.7"]);
    assert!(text.contains("hard link") || text.contains("6 per hour"), "{text}");
    wait_until("it is written again", || explains(&scene, "6 per hour"));
    fs::set_permissions(scene.kept(), Permissions::from_mode(0o620)).unwrap();
    wait_until("it is written again", || explains(&scene, "6 per hour"));
}

#[test]
fn each_agent_may_have_limits_of_its_own() {
    let scene = Scene::new();
    let agents: Vec<_> = (1..=12)
        .map(|rate| scene.start(&["--rate", &format!("{rate}/h"), "--key", "ip"]))
        .collect();
    assert_eq!(agents.len(), 12);
    assert!(!explains(&scene, "not known here"));
    let inode = || fs::metadata(scene.kept()).unwrap().ino();
    let before = inode();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(inode(), before, "nothing has changed");
}

#[test]
fn a_message_of_any_name_is_explained_by_flags() {
    let scene = Scene::new();
    let _agent = scene.start(&["--rate", "7/m"]);
    let (text, status) = scene.said(&["explain", "--message", "m", "ip=192.0.2.7"]);
    assert!(text.contains("7 per minute") && status == 0, "{text}");
}
