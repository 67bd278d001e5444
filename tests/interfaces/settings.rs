//! What is made of the declared settings: their list, the table in docs/CONFIG.md, and the JSON
//! Schema of the configuration.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gcra_policy::file::settings::{APART, Declared, REQUIRED, SettingTable, TABLES, Values};
use gcra_table::Rate;
use gcra_text::duration::{self, Exact, unit_words};
use serde_json::{Map, Value as Json, json};
use toml::de::{DeTable, DeValue};

use crate::support::documents::blocks;
use crate::support::recorded::{compare, is_writing};
use crate::support::root;

/// What stands around a setting in its table.
const AROUND: [(&str, &str, &str); 7] = [
    ("the file", "", "\n[policy.NAME]\nlimits = \"9/s\"\n"),
    ("[policy.NAME]", "[policy.NAME]\nlimits = \"9/s\"\nkey = [\"ip\"]\n", ""),
    ("a limit", "[policy.NAME]\nlimits = { rate = \"9/s\", ", " }\n"),
    ("penalty", "[policy.NAME]\nlimits = \"9/s\"\npenalty = { ceiling = \"9m\", ", " }\n"),
    (
        "bandwidth",
        "[policy.NAME]\nlimits = \"9/s\"\nbandwidth = { full = \"9m\", least = \"1m\", ",
        " }\n",
    ),
    (
        "[[policy.NAME.lists]]",
        "[policy.NAME]\nlimits = \"9/s\"\nkey = [\"ip\"]\n[[policy.NAME.lists]]\n\
         file = \"list\"\n",
        "",
    ),
    (
        "[store]",
        "[policy.NAME]\nlimits = \"9/s\"\nkey = [\"ip\"]\nshared = true\n[store]\n\
         url = \"redis://127.0.0.1\"\n",
        "",
    ),
];

/// The lines that a setting needs in front to have an effect, by the need that it declares.
const BESIDE: [(&str, &str); 3] = [
    ("settle", "settle = \"done\"\n"),
    ("shared", "shared = true\n"),
    ("without_store", "shared = true\nwithout_store = \"open\"\n"),
];

/// The sentences of the program about a configuration, or its mistakes.
fn read_config(text: &str) -> Result<[String; 2], Vec<String>> {
    gcra_spoa::testing::read_config(Path::new("gcra-spoa.toml"), text)
}

/// A value that a setting can have beside its default.
fn other_value(setting: &Declared, default: &str) -> String {
    match &setting.values {
        Values::Boolean => (default == "false").to_string(),
        Values::Number(_, most) if default == most.to_string() => (most - 1).to_string(),
        Values::Number(..) | Values::Cells => (default.parse::<u64>().unwrap() + 1).to_string(),
        Values::Time(least, _) => format!("\"{}\"", Exact(*least)),
        Values::Word(words) => {
            words.iter().map(|word| format!("\"{word}\"")).find(|word| *word != default).unwrap()
        }
        _ => setting.example.to_owned(),
    }
}

/// Whether a setting that is left out means the same as its default. Another value must not.
fn is_default(table: &str, setting: &Declared, default: &str) -> bool {
    let (_, before, after) = AROUND.iter().find(|(name, ..)| *name == table).unwrap();
    let beside = BESIDE.iter().find(|(name, _)| *name == setting.needs);
    // A time of settling matters if something is reserved.
    let reserve = if setting.name == "settle_within" { "reserve = 1\n" } else { "" };
    let beside = format!("{}{reserve}", beside.map_or("", |(_, text)| text));
    let is_shared = beside.contains("shared") || setting.name == "shared";
    let store = if is_shared { "\n[store]\nurl = \"redis://127.0.0.1\"\n" } else { "" };
    let means = |line: &str| read_config(&format!("{before}{beside}{line}{after}{store}"));
    let (name, other) = (setting.name, other_value(setting, default));
    let (left_out, written) = (means(""), means(&format!("{name} = {default}")));
    assert!(written.is_ok(), "{name} = {default}: {written:?}");
    let with_other = means(&format!("{name} = {other}"));
    assert!(with_other.is_ok() && written != with_other, "{name} = {other}: {with_other:?}");
    written == left_out
}

/// The default of a setting as in the file, if it is one.
fn default(setting: &Declared) -> Option<&str> {
    Some(setting.default).filter(|default| !["", REQUIRED].contains(default))
}

#[test]
fn settings() {
    let mut content = String::new();
    for table in TABLES {
        writeln!(content, "{}", table.place).unwrap();
        for setting in table.settings {
            let name = setting.name;
            let default = default(setting).map(|default| {
                assert!(is_default(table.place, setting, default), "{name} = {default}");
                format!(" = {default}")
            });
            writeln!(content, "    {name}{}", default.unwrap_or_default()).unwrap();
        }
    }
    let about = "The settings of the configuration file, and the defaults of those that have one.";
    compare("settings.txt", about, &content);

    let everything = fs::read_to_string(root().join("tests/interfaces/everything.toml")).unwrap();
    let is_used = |setting: &str| {
        let here = [format!("\n{setting} = "), format!("\n[{setting}"), format!(".{setting}]")];
        here.iter().any(|text| everything.contains(text))
    };
    let of_policies = TABLES.iter().take(2).flat_map(|table| table.settings);
    let left_out: Vec<_> = of_policies.map(|it| it.name).filter(|name| !is_used(name)).collect();
    assert!(left_out.is_empty(), "tests/interfaces/everything.toml does not use {left_out:?}");
}

/// A name that is none gets all names that are declared.
#[test]
fn names_of_settings() {
    for (table, (place, before, after)) in TABLES.iter().zip(AROUND) {
        assert_eq!(table.place, place);
        let mistakes = read_config(&format!("{before}no_such_setting = 1{after}")).unwrap_err();
        let names: Vec<_> = table.settings.iter().map(|setting| setting.name).collect();
        let end = format!("; use one of {}", names.join(", "));
        assert!(mistakes.iter().any(|mistake| mistake.ends_with(&end)), "{mistakes:?}");
    }
}

/// Compares a file with what the declared settings say, or writes it. Of a page, only the part
/// below this heading is compared.
#[track_caller]
fn compare_file(path: &str, heading: &str, content: &str) {
    let path = root().join(path);
    let text = fs::read_to_string(&path).unwrap_or_default();
    let (before, rest) = match heading {
        "" => ("", ""),
        heading => text.split_once(heading).unwrap(),
    };
    let after = rest.find("\n## ").map_or("", |end| &rest[end..]);
    let said = format!("{before}{heading}{content}{after}");
    if is_writing() {
        fs::write(&path, said).unwrap();
    } else {
        assert!(
            text == said,
            "{} does not say what the settings in crates/gcra-policy/src/file/settings.rs do; \
             write it anew with\n\n    GCRA_WRITE_INTERFACES=1 cargo test --test interfaces\n",
            path.display()
        );
    }
}

/// The values of a setting, for people.
fn in_words(values: &Values) -> String {
    match values {
        Values::Boolean => "`true` or `false`".to_owned(),
        Values::Number(least, most) => format!("a number from {least} to {most}"),
        Values::Time(least, most) => {
            format!("a time from {} to {}", Exact(*least), Exact(*most))
        }
        Values::Text => "text".to_owned(),
        Values::Word(words) => {
            words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        Values::Texts => "a list of texts".to_owned(),
        Values::Limit => "a limit as text".to_owned(),
        Values::Limits => "one limit or several".to_owned(),
        Values::Rule => "limits, `\"deny\"`, `\"unlimited\"`".to_owned(),
        Values::Cells => "a number or an arg".to_owned(),
        Values::When => "an arg with values".to_owned(),
        Values::Table(_) => "a table".to_owned(),
        Values::Tables(_) => "a list of tables".to_owned(),
        Values::Named(_) => "tables with names".to_owned(),
        Values::Overrides => "values with limits".to_owned(),
    }
}

#[test]
fn the_table_of_settings_is_true() {
    let mut content =
        "\n| setting | value | default | such as | meaning |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for table in TABLES {
        writeln!(content, "| **{}** | | | | |", table.place).unwrap();
        for setting in table.settings {
            let Declared { name, values, example, needs, help, .. } = setting;
            let default = match setting.default {
                "" | REQUIRED => setting.default.to_owned(),
                default => format!("`{default}`"),
            };
            let with = match *needs {
                "" => String::new(),
                needs => format!(" (with `{needs}`)"),
            };
            let values = in_words(values);
            writeln!(content, "| `{name}`{with} | {values} | {default} | `{example}` | {help} |")
                .unwrap();
        }
    }
    compare_file("docs/CONFIG.md", "### All settings\n", &content);
}

/// The pattern of the units with which a text is right.
fn units(is_right: impl Fn(&str) -> bool) -> String {
    let units = unit_words().filter(|unit| is_right(unit));
    format!("({})", units.collect::<Vec<_>>().join("|"))
}

/// The pattern of `"10/s"`; with `more`, of `"10/s burst 20"`.
fn rate(more: &str) -> String {
    let units = units(|unit| format!("1/{unit}").parse::<Rate>().is_ok());
    format!(r"^\s*[0-9]*\.?[0-9]+/[0-9]*{units}{more}\s*$")
}

/// The pattern of `"10m"`.
fn time() -> String {
    format!("^[0-9]+{}$", units(|unit| duration::parse(&format!("1{unit}")).is_some()))
}

/// The schema of a value.
fn schema(values: &Values) -> Json {
    let text = || json!({ "type": "string", "minLength": 1 });
    let limit = || json!({ "type": "string", "pattern": rate(r"(\s+burst\s+[0-9]+)?") });
    let one = || json!({ "anyOf": [limit(), { "$ref": "#/definitions/limit" }] });
    match values {
        Values::Boolean => json!({ "type": "boolean" }),
        Values::Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Values::Time(..) => json!({ "type": "string", "pattern": time() }),
        Values::Text => text(),
        Values::Word(words) => json!({ "enum": words }),
        Values::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Values::Limit => limit(),
        Values::Limits => json!({ "anyOf": [
            one(), { "type": "array", "items": one(), "minItems": 1, "maxItems": 4 }
        ] }),
        Values::Rule => {
            json!({ "anyOf": [{ "enum": ["deny", "unlimited"] }, schema(&Values::Limits)] })
        }
        Values::Cells => json!({ "anyOf": [schema(&Values::Number(0, u32::MAX.into())), text()] }),
        Values::When => {
            let values = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 });
            json!({
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": { "anyOf": [{ "type": "string" }, values] },
            })
        }
        Values::Table(table) => schema_of_table(table),
        Values::Tables(table) => json!({ "type": "array", "items": schema_of_table(table) }),
        Values::Named(table) => json!({
            "type": "object",
            "minProperties": 1,
            "patternProperties": { "^[A-Za-z0-9_-]{1,64}$": schema_of_table(table) },
            "additionalProperties": false,
        }),
        Values::Overrides => {
            json!({ "type": "object", "additionalProperties": schema(&Values::Rule) })
        }
    }
}

fn schema_of_table(table: &SettingTable) -> Json {
    let (mut properties, mut needs) = (Map::new(), Map::new());
    for setting in table.settings {
        let mut of_setting = schema(&setting.values);
        of_setting["description"] = setting.help.into();
        of_setting["examples"] = json!([json_of(setting.example)]);
        // The default of a policy's message is its name.
        if let Some(default) = default(setting).filter(|default| !default.contains("NAME")) {
            of_setting["default"] = json_of(default);
        }
        properties.insert(setting.name.to_owned(), of_setting);
        if !setting.needs.is_empty() {
            needs.insert(setting.name.to_owned(), json!([setting.needs]));
        }
    }
    let required = table.settings.iter().filter(|setting| setting.default == REQUIRED);
    let required: Vec<_> = required.map(|setting| setting.name).collect();
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "required": required,
        "dependencies": needs,
    });
    let has = |name: &str| table.settings.iter().any(|setting| setting.name == name);
    let apart = APART.iter().filter(|(one, other, _)| has(one) && has(other));
    let apart: Vec<_> =
        apart.map(|(one, other, _)| json!({ "not": { "required": [one, other] } })).collect();
    if !apart.is_empty() {
        schema["allOf"] = apart.into();
    }
    schema
}

/// The schema of a whole file.
fn schema_of_files() -> Json {
    let place = |place: &str| TABLES.iter().find(|table| table.place == place).unwrap();
    let mut schema = schema_of_table(place("the file"));
    // Editors for TOML know no newer draft.
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "The configuration of gcra-spoa".into();
    let mut limit = schema_of_table(place("a limit"));
    limit["oneOf"] = json!([
        { "required": ["rate"] },
        { "required": ["count"] },
        { "required": ["arg"] },
    ]);
    limit["properties"]["rate"]["pattern"] = rate("").into();
    schema["definitions"] = json!({ "limit": limit });
    schema
}

/// A value of a setting, as it is written in the file.
fn json_of(value: &str) -> Json {
    toml_as_json(&format!("value = {value}"))["value"].take()
}

fn toml_as_json(text: &str) -> Json {
    fn table(table: &DeTable<'_>) -> Json {
        table.iter().map(|(name, it)| (name.get_ref().to_string(), value(it.get_ref()))).collect()
    }
    fn value(of: &DeValue<'_>) -> Json {
        match of {
            DeValue::String(text) => json!(text),
            DeValue::Boolean(boolean) => json!(boolean),
            DeValue::Array(array) => array.iter().map(|it| value(it.get_ref())).collect(),
            DeValue::Table(of) => table(of),
            DeValue::Integer(number) => json!(number.as_str().parse::<i64>().unwrap()),
            DeValue::Float(number) => json!(number.as_str().parse::<f64>().unwrap()),
            DeValue::Datetime(time) => json!(time.to_string()),
        }
    }
    table(DeTable::parse(text).unwrap_or_else(|error| panic!("{error}: {text}")).get_ref())
}

#[test]
fn the_schema_is_that_of_the_settings() {
    let schema = serde_json::to_string_pretty(&schema_of_files()).unwrap() + "\n";
    compare_file("deploy/gcra-spoa.schema.json", "", &schema);
}

/// The documents that may have configurations.
fn documents() -> Vec<String> {
    let mut documents = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/guides"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            documents.extend(name.ends_with(".md").then(|| format!("{folder}/{name}")));
        }
    }
    documents
}

/// Files that are valid by the schema and to the agent, and files that are neither.
#[test]
fn the_schema_and_the_agent_agree() {
    let validator = jsonschema::validator_for(&schema_of_files()).unwrap();
    let mistakes = |text: &str| -> Vec<String> {
        validator.iter_errors(&toml_as_json(text)).map(|error| error.to_string()).collect()
    };
    let mut right: Vec<_> = ["deploy/container/shared.toml", "deploy/gcra-spoa.toml"]
        .into_iter()
        .map(|path| (path.to_owned(), fs::read_to_string(root().join(path)).unwrap()))
        .collect();
    for entry in fs::read_dir(root().join("haproxy")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|it| it == "toml") {
            right.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
    for document in documents() {
        let blocks = blocks(&document).into_iter().filter(|block| block.language == "toml");
        right.extend(blocks.map(|block| (block.place, block.text)));
    }
    let everything = fs::read_to_string(root().join("tests/interfaces/everything.toml")).unwrap();
    right.push(("everything.toml".to_owned(), everything.replace("WAIT", "1ms")));
    assert!(right.len() > 30, "{}", right.len());
    for (place, text) in right {
        assert_eq!(mistakes(&text), Vec::<String>::new(), "{place}");
    }

    for unit in unit_words() {
        let limits = match unit {
            "us" | "ms" => "\"0.5/20ms burst 7\"".to_owned(),
            unit => format!("[\" .5/2{unit} burst  20 \", {{ rate = \"10/{unit}\" }}]"),
        };
        let text = format!(
            "[policy.api]\nlimits = {limits}\n[policy.fast]\nlimits = \"1000000/ms\"\n\
             penalty = {{ ceiling = \"1{unit}\" }}"
        );
        assert_eq!(mistakes(&text), Vec::<String>::new(), "{text}");
        assert!(read_config(&text).is_ok(), "{text}: {:?}", read_config(&text));
    }

    for wrong in [
        "",
        "[policy.api]",
        "[policy.api]\nlimit = \"1/s\"",
        "[policy.api]\nlimits = 10",
        "[policy.api]\nlimits = \"10\"",
        "[policy.api]\nlimits = \"10/fortnight\"",
        "[policy.api]\nlimits = \"10/us\"",
        "[policy.api]\nlimits = \"10/10 s\"",
        "[policy.api]\nlimits = \"10./s\"",
        "[policy.api]\nlimits = \"1/s\"\nobserve = [\"10/secs burst 20\"]",
        "[policy.api]\nlimits = { rate = \"10/S\" }",
        "[policy.api]\nlimits = { rate = \"10/s burst 20\" }",
        "[policy.api]\nlimits = \"1/s\"\nmax_delay = \"2seks\"",
        "[policy.api]\nlimits = \"1/s\"\nmax_delay = \"2 s\"",
        "[policy.api]\nlimits = \"1/s\"\npenalty = { ceiling = \"1w\" }",
        "[policy.api]\nlimits = []",
        "[policy.api]\nlimits = { burst = 9 }",
        "[policy.api]\nlimits = { rate = \"1/s\", count = 9, window = \"day\" }",
        "[policy.api]\nlimits = { arg = \"a\", default = \"1/s\" }",
        "[policy.api]\nlimits = \"1/s\"\nkey = \"ip\"",
        "[policy.api]\nlimits = \"1/s\"\nipv4_prefix = 33",
        "[policy.api]\nlimits = \"1/s\"\nlowercase = \"yes\"",
        "[policy.api]\nlimits = \"1/s\"\nmode = \"shadow\"",
        "[policy.api]\nlimits = \"1/s\"\nmax_debt = \"1h\"",
        "[policy.api]\nlimits = \"1/s\"\npenalty = { cells = 1 }",
        "[policy.api]\nlimits = \"1/s\"\nkey = [\"ip\"]\nsettle = \"b\"\nmax_delay = \"1s\"",
        "[policy.api]\nlimits = \"1/s\"\n[[policy.api.lists]]\nfile = \"a\"",
        "[policy.api]\nlimits = \"1/s\"\n[policy.api.overrides]\n\"192.0.2.1\" = 7",
        "[policy.\"a b\"]\nlimits = \"1/s\"",
        "scope = \"all\"\n[policy.api]\nlimits = \"1/s\"",
        "[store]\nwait = \"1s\"\n[policy.api]\nlimits = \"1/s\"\nshared = true",
    ] {
        assert!(!mistakes(wrong).is_empty(), "the schema takes {wrong}");
        assert!(read_config(wrong).is_err(), "the agent takes {wrong}");
    }
}
