//! Prints the fields of a log: `cargo run -p haproxy-log --example fields -- LOG [FIELD...]`.
//! Without fields, it says which there are. `--format LOG-FORMAT` gives the format.

use std::io::Write as _;

use haproxy_log::{Format, Input, Options, Progress, read};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let given =
        arguments.next_if(|argument| argument == "--format").and_then(|_| arguments.next());
    let path = arguments.next().ok_or("usage: fields [--format LOG-FORMAT] LOG [FIELD...]")?;
    let input = if path == "-" { Input::stdin() } else { Input::file(path) };
    let format = match given {
        Some(format) => Format::compile(&format)?,
        None => Format::guess(&input.sample()?).ok_or("the log has no format that is known")?,
    };
    let names: Vec<String> = arguments.collect();
    if names.is_empty() {
        println!("{}; time: {}", format.name(), format.time());
        for field in format.fields() {
            println!("{}", field.name());
        }
        return Ok(());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let selection = format.select(&names)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut failed = Ok(());
    let counts =
        read(&[input], &selection, &Options::default(), &Progress::new(), &mut |entry| {
            let mut line = entry.at.to_string().into_bytes();
            for field in entry.fields {
                line.push(b'\t');
                line.extend_from_slice(field.unwrap_or(b"-"));
            }
            line.push(b'\n');
            if failed.is_ok() {
                failed = out.write_all(&line);
            }
        })?;
    out.flush()?;
    failed?;
    eprintln!("{counts:#?}");
    Ok(())
}
