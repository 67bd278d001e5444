//! The configurations that documents show: blocks marked `toml`, `spoe` and `haproxy`. Those
//! between two headings belong together.

use std::collections::BTreeMap;
use std::fs;

use super::root;

/// A fenced block of a document.
pub struct Block {
    /// The heading above it.
    pub section: String,
    pub language: String,
    pub text: String,
    /// For messages: the document, and the line of the block's first line.
    pub place: String,
}

/// The fenced blocks of a document, in order.
pub fn blocks(document: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let (mut blocks, mut section): (Vec<Block>, String) = (Vec::new(), String::new());
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.strip_prefix("```") {
            inside = !inside;
            if inside {
                blocks.push(Block {
                    section: section.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                    place: format!("{document}:{}", number + 1),
                });
            }
        } else if inside {
            let block = blocks.last_mut().unwrap();
            block.text.push_str(line);
            block.text.push('\n');
        } else if line.starts_with('#') {
            section = line.trim_start_matches(['#', ' ']).to_owned();
        }
    }
    assert!(!inside, "{document} ends within a block");
    blocks
}

/// The blocks between two headings, ready to be run.
#[derive(Default)]
pub struct Recipe {
    /// Each a complete file of policies.
    pub policies: Vec<String>,
    pub messages: String,
    /// Each a configuration of its own.
    pub frontends: Vec<String>,
    pub place: String,
}

pub fn recipes(document: &str) -> BTreeMap<String, Recipe> {
    let mut recipes: BTreeMap<String, Recipe> = BTreeMap::new();
    for block in blocks(document) {
        let recipe = recipes.entry(block.section).or_default();
        recipe.place.clone_from(&block.place);
        match &block.language[..] {
            "toml" => recipe.policies.push(block.text),
            "spoe" => recipe.messages.push_str(&block.text),
            "haproxy" => recipe.frontends.push(block.text),
            // Configurations of other programs, and what an operator types.
            "nginx" | "yaml" | "console" => {}
            other => panic!("{}: what is '{other}'?", block.place),
        }
    }
    recipes
}

/// A frontend, rules of one, or a backend, with all that they need: an origin, and the agents as
/// in the shipped file.
pub fn haproxy_cfg(block: &str) -> String {
    let mut config =
        "global\n    default-path config\n    log stdout len 8192 format raw local0 info\n    \
                      set-var proc.gcra_since date(0,us)\n\
                      defaults\n    mode http\n    log global\n    timeout connect 5s\n    \
                      timeout client 30s\n    timeout server 30s\n    \
                      no option abortonclose\n"
            .to_owned();
    if block.contains("frontend web\n") {
        config.push_str(&block.replace("bind :8080", "bind \"${GCRA_HTTP-:8080}\""));
    } else {
        let (rules, backends) = if block.starts_with(' ') { (block, "") } else { ("", block) };
        config.push_str(&format!(
            "frontend web\n    bind \"${{GCRA_HTTP-:8080}}\"\n    \
             filter spoe engine gcra config spoe-gcra.conf\n{rules}    default_backend app\n\
             {backends}"
        ));
    }
    if !block.starts_with("backend app\n") {
        config.push_str("backend app\n    server origin \"unix@${ORIGIN-/tmp/origin}\"\n");
    }
    config.push_str(
        "frontend origin\n    bind \"unix@${ORIGIN-/tmp/origin}\"\n    \
         http-request return status 200\n",
    );
    let shipped = fs::read_to_string(root().join("haproxy/haproxy.cfg")).unwrap();
    config.push_str(&shipped[shipped.find("backend undecided").unwrap()..]);
    config
}

/// The shipped spoe-gcra.conf with these messages, or with its own if there are none.
pub fn spoe_conf(messages: &str) -> String {
    let shipped = fs::read_to_string(root().join("haproxy/spoe-gcra.conf")).unwrap();
    if messages.is_empty() {
        return shipped;
    }
    let (agent, _) = shipped.split_once("spoe-message ").unwrap();
    let report = &shipped[shipped.find("spoe-message gcra-undecided").unwrap()..];
    let names = |keyword: &str, text: &str| {
        let sections = messages.split(keyword).skip(1).filter(|section| section.contains(text));
        sections.map(|section| section.lines().next().unwrap()).collect::<Vec<_>>().join(" ")
    };
    // A message without an event is in a group, and a file with groups has the report in one.
    let groups = names("spoe-group ", "");
    let mut with_events = names("spoe-message ", "\n    event ");
    let report = if groups.is_empty() { report } else { "" };
    if !report.is_empty() {
        with_events.push_str(" gcra-undecided");
    }
    let lists = [("messages", with_events), ("groups", groups)];
    let lists: String = lists
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(keyword, names)| format!("    {keyword} {names}\n"))
        .collect();
    format!("{}{messages}{report}", agent.replace("    messages check gcra-undecided\n", &lists))
}
