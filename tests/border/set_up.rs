//! A set-up: HAProxy with some configuration, an agent, and the application behind them.

use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::thread;

use crate::application::Application;
use crate::request::{Answer, Way};
use crate::row::{Row, Step, attempt};
use crate::support::{
    self, Agent, Haproxy, Program, certificate, directory, haproxy_folder, lua_module, needs,
    programs, root, wait_until,
};

/// The answers in the shipped files in place of an application.
const ANSWERS: [&str; 2] = ["Hello from your application.", "Hello from your files."];
const SERVER: &str = "    server app1 \"${GCRA_APP-127.0.0.1:8000}\"";
/// A HAProxy that speaks TLS for a client.
const TLS_CLIENT: &str = "defaults\n    mode tcp\n    timeout connect 60s\n    timeout client \
                          60s\n    timeout server 60s\nlisten client\n    bind \
                          \"${GCRA_HTTP}\"\n";
const BIND: &str = "bind \"${GCRA_HTTP-:8080}\"";

/// A configuration that rows are tried against.
#[derive(Clone, Debug)]
pub(crate) struct SetUp {
    cfg: File,
    /// The files that it names: the `.conf`, maps.
    files: Vec<File>,
    policies: Option<String>,
    args: Vec<String>,
    since: (u32, u32),
    balancer: bool,
    tls: Vec<String>,
    in_process: bool,
}

#[derive(Clone, Debug)]
struct File {
    name: String,
    text: String,
}

impl File {
    fn shipped(name: &str) -> Self {
        let text = fs::read_to_string(haproxy_folder().join(name));
        Self { name: name.to_owned(), text: text.unwrap_or_else(|it| panic!("{name}: {it}")) }
    }

    fn change(&mut self, from: &str, to: &str) {
        assert!(self.text.contains(from), "{} has no '{from}'", self.name);
        self.text = self.text.replace(from, to);
    }
}

impl SetUp {
    /// A `.cfg` of `haproxy/`, with the `.conf` and the maps of that folder. The application's
    /// server stands where the file has an answer of HAProxy's.
    pub(crate) fn shipped(name: &str) -> Self {
        let mut set_up = Self::of(name, File::shipped(name).text);
        for entry in fs::read_dir(haproxy_folder()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".conf") || name.ends_with(".map") {
                set_up.files.push(File::shipped(&name));
            }
        }
        set_up
    }

    /// Any other text of a `.cfg`: of blocks of a document, or what a program has printed. It
    /// binds to `"${GCRA_HTTP-:8080}"`, asks the agents at `"${GCRA_AGENT1-127.0.0.1:9000}"` and
    /// `GCRA_AGENT2`, and its application is `"${GCRA_APP-127.0.0.1:8000}"`, as in the shipped
    /// files. [`file`](Self::file) adds the `.conf`.
    pub(crate) fn of(name: &str, cfg: String) -> Self {
        let has_answer = |line: &str| ANSWERS.iter().any(|answer| line.contains(answer));
        let mut text = String::new();
        for line in cfg.lines() {
            let is_answer = line.trim_start().starts_with("http-request return status 200");
            text.push_str(if is_answer && has_answer(line) { SERVER } else { line });
            text.push('\n');
        }
        Self {
            cfg: File { name: name.to_owned(), text },
            files: Vec::new(),
            policies: None,
            args: Vec::new(),
            since: (2, 6),
            balancer: false,
            tls: Vec::new(),
            in_process: false,
        }
    }

    /// A `.cfg` of `haproxy/in-process/`: HAProxy decides itself, and there is no agent.
    pub(crate) fn in_process(name: &str) -> Self {
        let file = File::shipped(&format!("in-process/{name}"));
        Self { in_process: true, ..Self::of(name, file.text) }
    }

    /// A file beside the `.cfg`, in place of a shipped one with its name.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.retain(|file| file.name != name);
        self.files.push(File { name: name.to_owned(), text: text.to_owned() });
        self
    }

    /// The flags of the agent, such as `--rate 3/d`.
    pub(crate) fn agent(mut self, args: &str) -> Self {
        self.args.extend(args.split(' ').map(ToOwned::to_owned));
        self
    }

    /// The agent has these policies.
    pub(crate) fn policies(mut self, text: &str) -> Self {
        self.policies = Some(text.to_owned());
        self
    }

    /// The agent has the policies of a shipped file, with other numbers: none that come back while
    /// a test runs.
    pub(crate) fn shipped_policies(self, name: &str, changes: &[(&str, &str)]) -> Self {
        let mut file = File::shipped(name);
        changes.iter().for_each(|(from, to)| file.change(from, to));
        self.policies(&file.text)
    }

    /// Another text in the `.cfg`.
    pub(crate) fn change(mut self, from: &str, to: &str) -> Self {
        self.cfg.change(from, to);
        self
    }

    /// Another text in the `.conf`, or another file beside the `.cfg`.
    pub(crate) fn change_in(mut self, name: &str, from: &str, to: &str) -> Self {
        let file = self.files.iter_mut().find(|file| file.name == name);
        file.unwrap_or_else(|| panic!("there is no {name}")).change(from, to);
        self
    }

    /// It needs this version of HAProxy.
    pub(crate) fn since(mut self, version: (u32, u32)) -> Self {
        self.since = version;
        self
    }

    /// Clients come through a balancer that speaks the PROXY protocol, so they can have any
    /// address.
    pub(crate) fn behind_a_balancer(self) -> Self {
        let mut set_up = self.change(BIND, &format!("{BIND} accept-proxy"));
        set_up.balancer = true;
        set_up
    }

    /// Clients use TLS, by one of these options of a HAProxy: the file binds with
    /// `crt "${GCRA_CERT-server.pem}"`.
    pub(crate) fn over_tls(self, options: &[&str]) -> Self {
        // A HAProxy for each speaks it for the client, whose address must be known all the same.
        let mut set_up = self.change("alpn http/1.1", "alpn http/1.1 accept-proxy");
        set_up.tls = options.iter().map(|it| (*it).to_owned()).collect();
        set_up
    }

    /// Tries all rows, with each HAProxy. Panics with a list of all that went another way.
    pub(crate) fn check(&self, rows: &[Row]) {
        needs!(support::haproxy());
        if !self.tls.is_empty() {
            needs!(support::openssl());
        }
        let programs: Vec<_> =
            programs().into_iter().filter(|it| it.version >= self.since).collect();
        // One that is chosen may be too old. It refuses the file: tests/daemon/end_to_end.rs.
        if programs.is_empty() && std::env::var_os("HAPROXY").is_none() {
            let (major, minor) = self.since;
            return support::skip(&format!("it needs HAProxy {major}.{minor}"));
        }
        let complaints: String = thread::scope(|scope| {
            let tried = programs.iter().map(|it| scope.spawn(|| self.check_with(it, rows)));
            let tried: Vec<_> = tried.collect();
            tried.into_iter().map(|it| it.join().expect("a HAProxy")).collect()
        });
        assert!(complaints.is_empty(), "{}\n{complaints}", self.cfg.name);
    }

    fn check_with(&self, program: &Program, rows: &[Row]) -> String {
        let Program { path: program, version: (major, minor) } = program;
        let mut complaints = String::new();
        let mut complain = |name: &str, tried: Result<(), String>| {
            if let Err(complaint) = tried {
                writeln!(complaints, "* HAProxy {major}.{minor}, {name}: {complaint}").unwrap();
            }
        };
        let running = Running::start(self, program);
        for (id, row) in (1..).zip(rows) {
            complain(&row.name, running.try_row(id, row));
        }
        drop(running);
        if let Some(closed) = self.failing_closed() {
            let mut running = Running::start(&closed, program);
            for (id, row) in (1..).zip(rows) {
                complain(&format!("failing closed, {}", row.name), running.try_row(id, row));
            }
            if closed.in_process {
                return complaints;
            }
            running.kill_agent();
            complain("without an agent", running.try_row(rows.len() + 1, &undecided(rows)));
        }
        complaints
    }

    /// The same with the rule that denies what was not decided: the file has it as a comment.
    fn failing_closed(&self) -> Option<Self> {
        let rules = ["http-request deny status 503", "tcp-request content reject unless"];
        let is_rule = |line: &str| rules.iter().any(|rule| line.trim_start().starts_with(rule));
        let mut closed = self.clone();
        let lines = self.cfg.text.lines().map(|line| match line.trim_start().strip_prefix("# ") {
            Some(rule) if is_rule(rule) => rule,
            _ => line,
        });
        closed.cfg.text = lines.flat_map(|line| [line, "\n"]).collect();
        closed.cfg.text.lines().any(is_rule).then_some(closed)
    }
}

/// Where no agent answers, the first request of the rows is denied.
fn undecided(rows: &[Row]) -> Row {
    let first = rows.iter().flat_map(|row| &row.steps).find_map(|step| match step {
        Step::Ask { request, .. } => Some(request.clone()),
        _ => None,
    });
    attempt("the agent is away").ask(first.expect("a request"), "503|-")
}

struct Running {
    haproxy: Haproxy,
    application: Application,
    balancer: bool,
    tls: Vec<Haproxy>,
    agent: Option<Agent>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(set_up: &SetUp, program: &Path) -> Self {
        let folder = directory();
        let files = folder.path().join("files");
        fs::create_dir(&files).unwrap();
        for file in set_up.files.iter().chain([&set_up.cfg]) {
            fs::write(files.join(&file.name), &file.text).unwrap();
        }
        let mut args: Vec<_> = set_up.args.iter().map(String::as_str).collect();
        let policies = folder.path().join("policies.toml");
        if let Some(text) = &set_up.policies {
            fs::write(&policies, text).unwrap();
            args.extend(["--config", policies.to_str().unwrap()]);
        }
        let socket = folder.path().join("agent.sock");
        let is_unix = set_up.cfg.text.contains("GCRA_SOCKET");
        let listen =
            if is_unix { format!("unix:{}", socket.display()) } else { "127.0.0.1:0".to_owned() };
        let table = folder.path().join("table");
        let agent = (!set_up.in_process).then(|| Agent::start_at(&table, &listen, &args));
        let address = agent.as_ref().map_or("", |agent| &agent.address);
        let (module, lua) = (lua_module(), root().join("crates/gcra-lua"));
        let application = Application::start();
        let application_address = application.address.to_string();
        let mut environment = vec![
            ("GCRA_AGENT1", address),
            ("GCRA_AGENT2", address),
            ("GCRA_LIB", module.to_str().unwrap()),
            ("GCRA_SHARE", lua.to_str().unwrap()),
            ("GCRA_TABLE", table.to_str().unwrap()),
            ("GCRA_SOCKET", socket.to_str().unwrap()),
            ("GCRA_APP", application_address.as_str()),
        ];
        let certificate = (!set_up.tls.is_empty()).then(|| certificate(folder.path()));
        environment.extend(certificate.iter().map(|it| ("GCRA_CERT", it.to_str().unwrap())));
        let cfg = files.join(&set_up.cfg.name);
        let haproxy = Haproxy::start_program(program, cfg.to_str().unwrap(), &environment);
        match set_up.in_process {
            true => haproxy.process.wait_for_table(),
            false => haproxy.wait_for("gcra-agents", "agent1", "UP"),
        }
        let web = haproxy.frontend.to_string();
        let tls = set_up.tls.iter().map(|options| {
            let file = folder.path().join("client.cfg");
            let server = format!("server web \"${{WEB}}\" ssl verify none send-proxy {options}");
            fs::write(&file, format!("{TLS_CLIENT}    {server}\n")).unwrap();
            Haproxy::start_program(program, file.to_str().unwrap(), &[("WEB", &web)])
        });
        let (tls, balancer) = (tls.collect(), set_up.balancer);
        Self { haproxy, application, balancer, tls, agent, _folder: folder }
    }

    fn kill_agent(&mut self) {
        drop(self.agent.take());
        let text = self.haproxy.say("show stat\n");
        for line in text.lines().filter(|line| line.starts_with("gcra-agents,agent")) {
            let server = line.split(',').nth(1).expect("a server");
            self.haproxy.wait_for("gcra-agents", server, "DOWN");
        }
    }

    /// Goes through a row. `Err` says which request went another way.
    fn try_row(&self, id: usize, row: &Row) -> Result<(), String> {
        // No two rows share a /24.
        let address = format!("127.{}.{}.1", 20 + id / 250, id % 250);
        let mut way = Way {
            server: self.tls.first().unwrap_or(&self.haproxy).frontend,
            source: address.parse().expect("an address"),
            balancer: self.balancer,
        };
        let got_before = self.application.got();
        let mut n = 0;
        let mut fill = |text: &str| {
            n += 1;
            text.replace("{id}", &id.to_string()).replace("{n}", &n.to_string())
        };
        let mut answer = Answer { status: None, body: String::new() };
        for step in &row.steps {
            match step {
                Step::Reached(most) => {
                    let reached = self.application.got() - got_before;
                    if reached > *most {
                        return Err(format!("{reached} reached the application, not {most}"));
                    }
                }
                Step::Over(number) => way.server = self.tls[*number].frontend,
                Step::From(address) => way.source = ip(&fill(address)),
                Step::Ask { request, statuses } => {
                    let mut got = Vec::new();
                    let mut sent = String::new();
                    for _ in statuses {
                        sent = fill(request);
                        answer = way.ask(&sent);
                        let status = answer.status.map(|status| status.to_string());
                        got.push(status.unwrap_or_else(|| "-".to_owned()));
                    }
                    let mut both = got.iter().zip(statuses);
                    if !both.all(|(got, wanted)| wanted.split('|').any(|wanted| wanted == got)) {
                        let (got, wanted) = (got.join(" "), statuses.join(" "));
                        return Err(format!("{sent:.200?} got {got}, not {wanted}"));
                    }
                }
                Step::Sees(text) if !answer.body.contains(&fill(text)) => {
                    return Err(format!("the application did not see '{text}': {}", answer.body));
                }
                Step::SeesNo(text) if answer.body.contains(&fill(text)) => {
                    return Err(format!("the application saw '{text}': {}", answer.body));
                }
                Step::Sees(_) | Step::SeesNo(_) => {}
                Step::NoneSees { requests, text } => {
                    for request in requests {
                        let Answer { status, body } = way.ask(&fill(request));
                        if status.is_some_and(|it| it < 400) && body.contains(text) {
                            return Err(format!("{request:?} got {status:?}: {body}"));
                        }
                    }
                }
                Step::Leave { request, times } => {
                    let before = self.clients().1;
                    for _ in 0..*times {
                        way.leave(&fill(request), || ());
                    }
                    self.wait_until_gone(before + times);
                }
                Step::LeaveLater { request, times } => {
                    let clients = self.clients().1;
                    let held = self.application.hold();
                    for _ in 0..*times {
                        let before = self.application.got();
                        way.leave(&fill(request), || {
                            wait_until("the application has the request", || {
                                self.application.got() > before
                            });
                        });
                    }
                    drop(held);
                    self.wait_until_gone(clients + times);
                }
            }
        }
        Ok(())
    }

    /// How many clients the first frontend has, and how many it has had.
    fn clients(&self) -> (usize, usize) {
        let text = self.haproxy.say("show stat\n");
        let frontend = text.lines().find(|line| line.contains(",FRONTEND,"));
        let number =
            |at| frontend.and_then(|it| it.split(',').nth(at)).and_then(|it| it.parse().ok());
        (number(4).expect("scur"), number(7).expect("stot"))
    }

    /// Waits until so many clients have come, and all have gone: then all was charged that had to
    /// be.
    fn wait_until_gone(&self, come: usize) {
        wait_until("all clients have gone", || {
            let (now, ever) = self.clients();
            now == 0 && ever >= come
        });
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("'{text}' is no address"))
}
