//! The args for which HAProxy has samples by their names. Without the rules beside them, a client
//! gets around a limit by the text that it writes into an arg.

use std::fmt::Write as _;
use std::sync::LazyLock;

use crate::describe::text;
use crate::haproxy::shipped::{API_KEY_CFG, GROUP_CFG, line, part};
use crate::key_parts::KeyParts;
use crate::policies::Policies;
use crate::policy::Policy;

/// Stands for a text that the operator has to write. To HAProxy it is an ACL or a sample that does
/// not exist.
pub const EDIT: &str = "EDIT-THIS";

/// The converters behind an arg whose text nothing compares: it has one length, so that nobody
/// makes a message too long for a frame.
pub(crate) const HASH: &str = ",sha2(256),hex";

/// The longest text of an arg that is compared, in bytes. Three of them fit into a frame.
const MOST_TEXT: u32 = 4000;

/// An arg with a name that says what it is.
pub(crate) struct KnownArg {
    names: &'static [&'static str],
    /// The sample of the request that HAProxy has.
    found: &'static str,
    /// The converters that make one text of all spellings.
    folds: &'static str,
    /// Whether it is of any length, because a client writes it.
    is_any_text: bool,
    /// For haproxy.cfg: so that servers see what is counted.
    rules: String,
    /// A remark about evasions that no rule can stop.
    remark: &'static str,
}

static ARGS: LazyLock<[KnownArg; 6]> = LazyLock::new(|| {
    [
        KnownArg {
            names: &["ip", "src", "client"],
            found: "src",
            folds: "",
            is_any_text: false,
            rules: String::new(),
            remark: "a client can own an IPv6 /48, with 65536 limits of its own: a second limit \
                 with ipv6_prefix = 48 holds it",
        },
        KnownArg {
            names: &["path"],
            found: "path",
            folds: concat!(
                ",url_dec,lower,regsub([[:space:][:cntrl:]],,g),regsub('[?#].*',),",
                "regsub(';[^/]*',,g),",
                r#"regsub('/[./]*/',/,g),'regsub("(^/|[^./])[./]+$","\1")'"#
            ),
            is_any_text: true,
            rules: r"    # What servers may take for another path than the one that is counted.
    http-request deny status 400 unless { path,url_dec -m beg / }
    http-request deny status 400 if { path -m beg // } or { path -m sub %00 }
    http-request deny status 400 if { path,url_dec -m sub /.. \\ }
"
            .to_owned()
                + line(GROUP_CFG, "    http-request del-header ^x.(original"),
            remark: "all spellings of a path are one, such as /a, /A/ and /%61;x=1. Each path \
                 that a client invents has a limit of its own",
        },
        KnownArg {
            names: &["url"],
            found: "pathq",
            folds: "",
            is_any_text: true,
            rules: "    http-request deny status 400 unless { path -m beg / }\n".to_owned(),
            remark: "a client that writes another query each time has another limit each time",
        },
        KnownArg {
            names: &["method"],
            found: "method",
            folds: "",
            is_any_text: false,
            rules: "    # Add the other methods that your servers know, such as those of WebDAV.
    http-request deny status 405 unless { method GET HEAD POST PUT PATCH DELETE OPTIONS }
    http-request del-header ^x.(http.)?(method|verb)(.override)?$ -m reg
"
            .to_owned(),
            remark: "a server that reads '_method' in a form takes that instead",
        },
        KnownArg {
            names: &["host"],
            found: "req.hdr(host)",
            folds: ",host_only,regsub('[.]+$',),lower",
            is_any_text: true,
            rules: "    # A name or an address, with or without a port. No other header says one.
    http-request deny status 400 unless { req.fhdr(host) -m reg \
                ^([0-9A-Za-z._-]+|[[][0-9A-Fa-f:.]+])(:[0-9]*)?$ }
    http-request del-header ^(forwarded|x.(forwarded.|original.)?(host|server)|\
                x.http.host.override)$ -m reg
"
            .to_owned(),
            remark: "without port and dot. Each name that a client invents has a limit of its \
                 own: deny names that are not yours",
        },
        KnownArg {
            names: &["key", "api_key", "apikey"],
            found: API_KEY,
            folds: "",
            is_any_text: true,
            rules: part(
                API_KEY_CFG,
                "    # Your application and the limit",
                "\n    # One decision",
            )
            .to_owned(),
            remark: "a key that a client sends elsewhere, in the query or a cookie, is not \
                 counted. Each key that a client invents has a limit of its own: deny keys \
                 that are not valid, or add a policy by address",
        },
    ]
});

/// Where a request may have a value of any other name, with the name for N.
struct Place {
    words: &'static str,
    found: &'static str,
    folds: &'static str,
    /// Conditions for one value, which servers see, too.
    one: &'static str,
    /// Conditions for none.
    none: &'static str,
}

const PLACES: [Place; 3] = [
    Place {
        words: "a header",
        found: "req.fhdr(x-N)",
        folds: "",
        one: "{ req.fhdr_cnt(x-N) eq 1 } !{ req.fhdr(x-N) -m reg [^!-~]|, }",
        none: "{ req.fhdr_cnt(x-N) eq 0 }",
    },
    Place {
        words: "a cookie",
        found: "req.cook(N)",
        folds: ",url_dec,regsub([[:punct:][:space:][:cntrl:]],,g)",
        // Its name stands in the field once, quotes or not: servers disagree about quotes. No
        // name has a letter as a code, which some servers decode.
        one: "{ req.cook_cnt(N) eq 1 } { req.cook(N),url_dec -m found } \
              !{ req.cook(N) -m sub \\\\ } !{ req.fhdr_cnt(cookie) gt 1 } \
              !{ req.fhdr(cookie) -m reg -i \
              (^|[,;])[^,;=]*%(2d|3[0-9]|[46][1-9a-f]|5[0-9af]|7[0-9a]) } \
              !{ req.fhdr(cookie) -m reg -i \
              (^|[,;])[[:space:]]*N[[:space:]]*[[=].*[,;][[:space:]]*N[[:space:]]*[[=] }",
        none: "!{ req.fhdr(cookie) -m reg -i (^|[,;])[[:space:]]*N[[:space:]]*[[=] } \
               !{ req.fhdr(cookie) -m reg -i \
               (^|[,;])[^,;=]*%(2d|3[0-9]|[46][1-9a-f]|5[0-9af]|7[0-9a]) }",
    },
    Place {
        words: "the query",
        found: "url_param(N)",
        folds: ",url_dec,regsub([+[:space:][:cntrl:]],,g)",
        // A separator that is encoded is none. HAProxy takes a second ? for the beginning of the
        // query, and servers do not.
        one: "{ url_param(N) -m found } { query,url_dec -m found } !{ query -m sub %00 ? } \
              !{ query,regsub(%26|%3b|%3d,.,gi),url_dec,regsub([+[:space:][:cntrl:]],,g) \
              -m reg -i (^|[&;])[[]?N[][=].*[&;][[]?N[][=] }",
        none: "!{ query -m found } or { query,url_dec -m found } !{ query -m sub %00 ? } \
               !{ query,regsub(%26|%3b|%3d,.,gi),url_dec,regsub([+[:space:][:cntrl:]],,g) \
               -m reg -i (^|[&;])[[]?N[][=] }",
    },
];

/// The header that usually has an API key.
pub(crate) const API_KEY: &str = "req.fhdr(x-api-key)";

impl KnownArg {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        ARGS.iter().find(|arg| arg.names.contains(&name))
    }

    /// The sample with its whole text.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", self.found, self.folds)
    }

    pub(crate) fn is_api_key(&self) -> bool {
        self.found == API_KEY
    }
}

impl Policies {
    /// The sample of an arg as agents get it, if its name says which.
    pub(crate) fn sample(&self, name: &str) -> Option<String> {
        let arg = KnownArg::named(name)?;
        let is_hashed = arg.is_any_text && !self.compares(name);
        Some(arg.text() + if is_hashed { HASH } else { "" })
    }

    /// Whether a text of the file is compared with this arg.
    pub(crate) fn compares(&self, name: &str) -> bool {
        let folds = KnownArg::named(name).map_or("", |arg| arg.folds);
        let reads = |key: &KeyParts| key.args.is_empty() || key.reads(name.as_bytes());
        let ignores_case =
            |key: &KeyParts| key.lowercase && reads(key) && !folds.contains("lower");
        self.list.iter().any(|policy| {
            policy.when.as_ref().is_some_and(|when| *when.arg == *name.as_bytes())
                || reads(&policy.key) && !policy.overrides.values.is_empty()
                || policy.keys().any(ignores_case)
        })
    }

    /// The comments about an arg of a message.
    pub(crate) fn remarks(&self, name: &str) -> Vec<String> {
        let compares = self.compares(name);
        let Some(arg) = KnownArg::named(name) else {
            let hash = if compares { "" } else { HASH };
            let samples = PLACES.map(|Place { words, found, folds, .. }| {
                format!("Of {words}: {}{folds}{hash}", found.replace('N', name))
            });
            return [vec![format!("{name}: write its sample.")], samples.to_vec()].concat();
        };
        let form = match !arg.folds.is_empty() && compares {
            true => ". Write its values in the file in that form, in lower case",
            false => "",
        };
        let remark = (!arg.remark.is_empty()).then(|| format!("{name}: {}{form}", arg.remark));
        remark.into_iter().collect()
    }

    /// For haproxy.cfg: the rules about the args of the keys, and about those of `when` with a
    /// sample. With `several` messages the path may choose among them.
    pub(crate) fn rules_about_args(&self, several: bool) -> String {
        let mut names: Vec<String> = several.then(|| "path".to_owned()).into_iter().collect();
        for name in self.list.iter().flat_map(|policy| policy.args_of_clients()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut rules: String = names.iter().map(|name| self.rules_about(name, several)).collect();
        // The rules of an API key have it.
        if names.iter().any(|name| KnownArg::named(name).is_none()) {
            rules.push_str("    # To CGI, WSGI and PHP, X_User is X-User.\n");
            rules.push_str(line(API_KEY_CFG, "    http-request del-header [^A"));
        }
        rules
    }

    fn rules_about(&self, name: &str, several: bool) -> String {
        let compares = self.compares(name);
        // With several messages not each request has it.
        let is_needed = !several && self.needs(name);
        let Some(arg) = KnownArg::named(name) else {
            let mut rule = format!(
                "    # {name}: one value, so that servers see the one that is counted. Write the \
                 conditions\n    # of its sample, or TRUE if no client writes it.\n"
            );
            for Place { words, found, one, none, .. } in PLACES {
                let short = match compares {
                    true => format!(" {{ {found} -m len le {MOST_TEXT} }}"),
                    false => String::new(),
                };
                let or_none = if is_needed { String::new() } else { format!(" or {none}") };
                let conditions = format!("{one}{short}{or_none}").replace('N', name);
                let _ = writeln!(rule, "    # Of {words}: {conditions}");
            }
            return rule + &format!("    http-request deny status 400 unless {EDIT}\n");
        };
        let mut rules = arg.rules.clone();
        if arg.is_any_text && compares {
            let _ = writeln!(
                rules,
                "    http-request deny status 400 if {{ {} -m len gt {MOST_TEXT} }}",
                arg.found
            );
        }
        if arg.is_api_key() && is_needed {
            let _ = writeln!(
                rules,
                "    # Without a key there is no decision.\n    \
                 http-request deny status 401 unless {{ {API_KEY} -m len gt 0 }}"
            );
        }
        rules
    }

    /// Whether some key has no decision without this arg.
    fn needs(&self, name: &str) -> bool {
        let keys = self.list.iter().flat_map(|policy| policy.keys());
        let mut args = keys.flat_map(|key| &key.args);
        args.any(|arg| *arg.name == *name.as_bytes() && !arg.has_fallback())
    }
}

impl Policy {
    fn keys(&self) -> impl Iterator<Item = &KeyParts> {
        self.limits().filter_map(|limit| limit.key.as_deref()).chain([&self.key])
    }

    /// The args that a client may write.
    fn args_of_clients(&self) -> Vec<String> {
        let keys = [&self.key].into_iter().chain(self.keys());
        let keys = keys.flat_map(KeyParts::names).map(text);
        let when = self.when.iter().map(|when| text(&when.arg));
        keys.chain(when.filter(|name| KnownArg::named(name).is_some())).collect()
    }
}
