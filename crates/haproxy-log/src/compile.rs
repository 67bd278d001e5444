//! A log-format string, taken apart as HAProxy does it (src/log.c, `lf_expr_compile`).

use crate::format_error::FormatError;

/// A part of a log-format string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// One or more spaces. HAProxy writes one, and none after a space.
    Space,
    /// Literal text without spaces.
    Text(Vec<u8>),
    Value(Value),
}

/// A value of a log-format string: `%ci`, `%{+Q}r`, `%(name)[expression]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// The name in parentheses.
    pub(crate) given: Option<String>,
    pub(crate) source: Source,
    pub(crate) flags: Flags,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Alias(&'static str),
    Expression(String),
}

impl Source {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Alias(name) => name,
            Self::Expression(expression) => expression,
        }
    }
}

/// The flags in braces: `{+Q,-E}`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Flags {
    pub(crate) quote: bool,
    pub(crate) hex: bool,
    pub(crate) escape: bool,
    pub(crate) json: bool,
    cbor: bool,
}

/// All names of HAProxy 2.6 to 3.4 except "o", which has options for the names behind it.
const ALIASES: &[&str] = &[
    "B", "CC", "CS", "H", "HM", "HP", "HPO", "HQ", "HU", "HV", "ID", "OG", "ST", "T", "TR", "Ta",
    "Tc", "Td", "Th", "Ti", "Tl", "Tq", "Tr", "Ts", "Tt", "Tu", "Tw", "U", "ac", "b", "bc", "bi",
    "bp", "bq", "ci", "cp", "f", "fc", "fi", "fp", "ft", "hr", "hrl", "hs", "hsl", "lc", "ms",
    "pid", "r", "rc", "rt", "s", "sc", "si", "sp", "sq", "sslc", "sslv", "t", "tr", "trg", "trl",
    "ts", "tsc",
];

/// The longest log-format string. HAProxy's own limit is the length of a line of its
/// configuration, 2048 bytes by default.
const LONGEST: usize = 65_536;

/// A log-format string taken apart.
pub(crate) struct Compiled {
    pub(crate) nodes: Vec<Node>,
    /// Whether the whole line is a JSON object (`%{+json}o`).
    pub(crate) json: bool,
}

/// Takes a log-format string apart.
pub(crate) fn compile(text: &str) -> Result<Compiled, FormatError> {
    if text.len() > LONGEST {
        return Err(FormatError::new(format!("it is longer than {LONGEST} bytes")));
    }
    let mut compiler = Compiler { rest: text, nodes: Vec::new(), flags: Flags::default(), text };
    let mut json = false;
    while let Some(next) = compiler.rest.chars().next() {
        match next {
            ' ' => compiler.space(),
            '%' => json |= compiler.percent()?,
            _ => {
                let end = compiler.rest.find(['%', ' ']).unwrap_or(compiler.rest.len());
                let (literal, rest) = compiler.rest.split_at(end);
                compiler.literal(literal);
                compiler.rest = rest;
            }
        }
    }
    Ok(Compiled { nodes: compiler.nodes, json })
}

struct Compiler<'a> {
    text: &'a str,
    rest: &'a str,
    nodes: Vec<Node>,
    /// The flags that `%{..}o` set for all that follows.
    flags: Flags,
}

impl<'a> Compiler<'a> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches(' ');
        if self.nodes.last() != Some(&Node::Space) {
            self.nodes.push(Node::Space);
        }
    }

    fn literal(&mut self, literal: &str) {
        if let Some(Node::Text(text)) = self.nodes.last_mut() {
            text.extend_from_slice(literal.as_bytes());
        } else {
            self.nodes.push(Node::Text(literal.as_bytes().to_vec()));
        }
    }

    /// The mistake, and its position.
    fn error(&self, what: impl AsRef<str>) -> FormatError {
        let position = self.text.len() - self.rest.len() + 1;
        FormatError::new(format!("{} at position {position}", what.as_ref()))
    }

    /// Takes what follows a '%'. Returns whether it makes the line a JSON object.
    fn percent(&mut self) -> Result<bool, FormatError> {
        let mut at = &self.rest[1..];
        if let Some(rest) = at.strip_prefix('%') {
            self.literal("%");
            self.rest = rest;
            return Ok(false);
        }
        let mut given = None;
        if let Some(inside) = at.strip_prefix('(') {
            let end = inside.find(')').ok_or_else(|| self.error("'%(' without ')'"))?;
            // A type may follow the name: `%(name:sint)`.
            let name = inside[..end].split(':').next().unwrap_or_default();
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if !name.chars().all(fits) {
                return Err(self.error("a name with other characters than a-z, 0-9, '_' and '-'"));
            }
            given = (!name.is_empty()).then(|| name.to_owned());
            at = &inside[end + 1..];
        }
        let mut flags = self.flags;
        let mut has_flags = false;
        if let Some(inside) = at.strip_prefix('{') {
            let end = inside.find('}').ok_or_else(|| self.error("'%{' without '}'"))?;
            self.set(&mut flags, &inside[..end])?;
            at = &inside[end + 1..];
            has_flags = true;
        }
        if let Some(inside) = at.strip_prefix('[') {
            let end = expression_end(inside).ok_or_else(|| self.error("'%[' without ']'"))?;
            let expression = inside[..end].trim();
            if expression.is_empty() {
                return Err(self.error("'%[]' without an expression"));
            }
            let source = Source::Expression(expression.to_owned());
            self.nodes.push(Node::Value(Value { given, source, flags }));
            self.rest = &inside[end + 1..];
            return Ok(false);
        }
        if !at.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(self.error("'%' without a name (write '%%' for the character itself)"));
        }
        let end = at.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(at.len());
        let name = &at[..end];
        let rest: &'a str = &at[end..];
        if name == "o" {
            if flags.cbor {
                return Err(self.error("CBOR, which cannot be read,"));
            }
            let json = has_flags && flags.json;
            self.flags = flags;
            self.rest = rest;
            return Ok(json);
        }
        let known = ALIASES.iter().find(|&&alias| alias == name);
        let known = known.ok_or_else(|| self.error(format!("the unknown name '%{name}'")))?;
        self.nodes.push(Node::Value(Value { given, source: Source::Alias(known), flags }));
        self.rest = rest;
        Ok(false)
    }

    /// Applies `+Q,-E`.
    fn set(&self, flags: &mut Flags, list: &str) -> Result<(), FormatError> {
        let mut on = true;
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if name.starts_with(['+', '-']) {
                on = name.starts_with('+');
            }
            match name.strip_prefix(['+', '-']).unwrap_or(name) {
                "Q" => flags.quote = on,
                "X" => flags.hex = on,
                "E" => flags.escape = on,
                "json" => flags.json = on,
                "cbor" => flags.cbor = on,
                // Whether '-' is written for no value, and how CBOR is.
                "M" | "bin" => {}
                name => return Err(self.error(format!("the unknown flag '{name}'"))),
            }
        }
        Ok(())
    }
}

/// Where the ']' of an expression is: outside of the parentheses and quotes of its arguments.
fn expression_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut quote, mut i) = (0_usize, None, 0);
    while let Some(&byte) = bytes.get(i) {
        match (quote, byte) {
            (Some(b'"') | None, b'\\') => i += 1,
            (Some(open), _) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') if depth > 0 => quote = Some(byte),
            (None, b'(') => depth += 1,
            (None, b')') => depth = depth.saturating_sub(1),
            (None, b']') if depth == 0 => return Some(i),
            (None, _) => {}
        }
        i += 1;
    }
    None
}
