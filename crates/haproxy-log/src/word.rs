//! A log-format as it stands in HAProxy's configuration: a word with quotes, backslashes and
//! variables (src/tools.c, `parse_line`).

use crate::format_error::FormatError;

/// The strings that a text can mean, the most likely first: what HAProxy makes of the word, what
/// it makes of the text between two double quotes, and the text itself.
pub(crate) fn readings(
    text: &str,
    variables: &[(&str, &str)],
) -> Vec<Result<String, FormatError>> {
    let trimmed = text.trim();
    let line = trimmed.strip_prefix("log-format").filter(|rest| rest.starts_with([' ', '\t']));
    let argument = line.unwrap_or(trimmed).trim();
    let word = || take_apart(argument, false, variables);
    let inside = || take_apart(argument, true, variables);
    let itself = || Ok(argument.to_owned());
    let is_quoted = |quote: char| {
        let inside = argument.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        inside.is_some_and(|inside| !inside.replace("\\\"", "").contains(quote))
    };
    match () {
        () if line.is_some() || is_quoted('"') || is_quoted('\'') => {
            vec![word(), inside(), itself()]
        }
        () if argument.contains("\\ ") || argument.contains("\\\"") => {
            vec![word(), inside(), itself()]
        }
        () if argument.contains("${") || argument.contains("$HAPROXY_") => {
            vec![inside(), word(), itself()]
        }
        () => vec![itself(), word(), inside()],
    }
}

/// The string that HAProxy reads in a text. The text begins outside of quotes, or it stands
/// between double quotes, and then a quotation mark in it is an ordinary character.
fn take_apart(
    text: &str,
    is_inside: bool,
    variables: &[(&str, &str)],
) -> Result<String, FormatError> {
    let mut out = String::with_capacity(text.len());
    // The open quote.
    let mut quote = is_inside.then_some('"');
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        rest = &rest[next.len_utf8()..];
        match (next, quote) {
            ('"' | '\'', None) => quote = Some(next),
            (_, Some(open)) if next == open && !is_inside => quote = None,
            ('\\', None | Some('"')) => rest = backslash(rest, quote.is_some(), &mut out)?,
            ('$', Some('"')) => rest = variable(rest, variables, &mut out)?,
            _ => out.push(next),
        }
    }
    Ok(out)
}

/// Appends what a backslash and the text behind it are. Returns what follows.
fn backslash<'a>(
    rest: &'a str,
    in_quotes: bool,
    out: &mut String,
) -> Result<&'a str, FormatError> {
    let Some(kind) = rest.chars().next() else {
        out.push('\\');
        return Ok(rest);
    };
    let after = &rest[kind.len_utf8()..];
    match kind {
        't' => out.push('\t'),
        'n' => out.push('\n'),
        'r' => out.push('\r'),
        ' ' | '\\' | '#' | '"' | '\'' => out.push(kind),
        '$' if in_quotes => out.push(kind),
        'x' => {
            let digit = |at: usize| char::from(*after.as_bytes().get(at)?).to_digit(16);
            let number = digit(0).zip(digit(1)).map(|(high, low)| high * 16 + low);
            let Some(character) = number.and_then(char::from_u32).filter(char::is_ascii) else {
                return Err(FormatError::new(
                    "'\\x' stands for one byte of ASCII, by two digits such as '\\x7c'".to_owned(),
                ));
            };
            out.push(character);
            return Ok(&after[2..]);
        }
        other => out.extend(['\\', other]),
    }
    Ok(after)
}

/// Appends the value of a variable, whose `$` stands before `rest`: `NAME`, `{NAME}` or
/// `{NAME-DEFAULT}`. Returns what follows.
fn variable<'a>(
    rest: &'a str,
    variables: &[(&str, &str)],
    out: &mut String,
) -> Result<&'a str, FormatError> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (inside, after) = match rest.strip_prefix('{').map(|rest| rest.split_once('}')) {
        Some(Some((inside, after))) => (inside, after),
        Some(None) => return Err(FormatError::new("'${' without '}'".to_owned())),
        None => rest.split_at(rest.find(|c| !is_of_name(c)).unwrap_or(rest.len())),
    };
    let (name, default) = match inside.split_once('-') {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let known = variables.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    match known.or(default) {
        Some(value) => out.push_str(value),
        None if name.is_empty() => out.push('$'),
        None => return Err(FormatError::unknown_variable(name)),
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings that HAProxy 2.6 and 3.4 read in these words.
    #[test]
    fn a_word_is_taken_apart_as_haproxy_does_it() {
        let variables = [("FORMAT", "%ci %r")];
        for (word, expected) in [
            (r#"%ST\ "%CC"\ "%hr"\ end"#, "%ST %CC %hr end"),
            (r#""%ci [%tr] "'%b %{+Q}r'"#, "%ci [%tr] %b %{+Q}r"),
            (r#""%ci\t%tr\x7cend\r\n""#, "%ci\t%tr|end\r\n"),
            (r#""\"%r\" 100%% \\ \$x \#y""#, r#""%r" 100%% \ $x #y"#),
            (r#"'"%r" \t $FORMAT #z \x41'"#, r#""%r" \t $FORMAT #z \x41"#),
            (r#"%ci\ \#\"\'\x41\$FORMAT$FORMAT\q"#, r#"%ci #"'A\$FORMAT$FORMAT\q"#),
            (r#""$FORMAT more""#, "%ci %r more"),
            (r#""${FORMAT}more ${TIER-web}""#, "%ci %rmore web"),
            (r#""'a' \'b\' \q \1 50$""#, r"'a' 'b' \q \1 50$"),
        ] {
            assert_eq!(take_apart(word, false, &variables).unwrap(), expected, "{word}");
        }
        for (word, error) in [
            (r#""$TIER""#, "the environment variable 'TIER' is not known here"),
            (r#""${TIER""#, "'${' without '}'"),
            (r#""\x4""#, "by two digits such as"),
            (r#""\xé""#, "by two digits such as"),
        ] {
            let said = take_apart(word, false, &variables).unwrap_err().to_string();
            assert!(said.contains(error), "{word}: {said}");
        }
    }
}
