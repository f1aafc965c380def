//! Generates `fordway.h` from the Rust code that it describes.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};

const HEADER: &str = "bind/capi/include/fordway.h";
const SOURCES: [&str; 2] = ["bind/capi/src/abi.rs", "bind/capi/src/exports.rs"];

const INTRODUCTION: &str = "\
/* Reads files on HTTP servers, objects on any lane, and local files. Link with -lfordway.
 *
 * A call that fails returns -1, sets errno, and stores a message for fordway_last_error().
 * This file is written by `cargo xtask header` of bind/capi/src/abi.rs and exports.rs. */";

/// The maximum length of a line of the header.
const LINE_LENGTH_MAX: usize = 120;

/// The C names of items whose Rust names differ.
const NAMES: [(&str, &str); 2] = [("OpenOptions", "fordway_options"), ("Fragment", "fordway_fragment")];

/// Writes the header. Errors: the sources are not valid Rust.
pub(crate) fn write(root: &Path) -> Result<()> {
    let path = root.join(HEADER);
    std::fs::write(&path, generated(root)?).with_context(|| format!("writing {}", path.display()))
}

/// Checks the header file against the generated header. Errors: the files differ.
pub(crate) fn check(root: &Path) -> Result<()> {
    let path = root.join(HEADER);
    let there = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    ensure!(there == generated(root)?, "{HEADER} does not match the code; run `cargo xtask header`");
    Ok(())
}

fn generated(root: &Path) -> Result<String> {
    let mut builder = Builder::new().with_config(config());
    for source in SOURCES {
        builder = builder.with_src(root.join(source));
    }
    let bindings = builder.generate().context("the header cannot be generated")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(with_c89_comments(&without_safety_sections(&String::from_utf8(text)?)))
}

fn config() -> Config {
    let mut config = Config {
        language: Language::C,
        header: Some(INTRODUCTION.to_owned()),
        include_guard: Some("FORDWAY_H".to_owned()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/types.h"].map(str::to_owned).to_vec(),
        cpp_compat: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        style: Style::Tag,
        line_length: 110,
        ..Config::default()
    };
    config.export.rename = NAMES.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();
    config
}

/// Removes the safety sections of the Rust documentation, which C programmers do not need.
fn without_safety_sections(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut is_in_section = false;
    for line in text.lines() {
        is_in_section = line.starts_with("//") && (is_in_section || line.trim_end() == "// # Safety");
        if is_in_section {
            continue;
        }
        kept.push_str(line.trim_end());
        kept.push('\n');
    }
    // Remove the empty line before each section.
    kept.replace("\n//\nstruct", "\nstruct").replace("\n//\nint", "\nint").replace("\n//\nssize", "\nssize")
}

/// Converts each comment of `//` lines to a `/* */` comment, because compilers for C89 accept no other comments.
fn with_c89_comments(text: &str) -> String {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let (mut converted, mut lines) = (String::with_capacity(text.len()), text.lines().peekable());
    let mut is_within = false;
    while let Some(line) = lines.next() {
        let (indent, words) = match line.split_once("//") {
            Some(found) if is_comment(line) => found,
            // The comment at the end of a directive.
            Some((directive, words)) if line.starts_with('#') => {
                converted.extend([directive, "/*", words, " */\n"]);
                continue;
            }
            _ => {
                converted.extend([line, "\n"]);
                continue;
            }
        };
        converted.extend([indent, if is_within { " *" } else { "/*" }, words]);
        is_within = lines.peek().is_some_and(|next| is_comment(next));
        let end = match is_within {
            true => "",
            false if line.len() + 3 <= LINE_LENGTH_MAX => " */",
            false => "\n */",
        };
        converted.extend([end, "\n"]);
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_what_the_code_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        check(&root).unwrap();
        let text = generated(&root).unwrap();
        for said in ["struct fordway_options {", "ssize_t fordway_pread(int file", "FORDWAY_ADVICE_DONTNEED"]
        {
            assert!(text.contains(said), "{said} is not in {text}");
        }
        assert!(!text.contains("Safety"));
    }

    #[test]
    fn comments_are_for_all_compilers() {
        let long = format!("// {}", "x".repeat(LINE_LENGTH_MAX - 4));
        let text =
            format!("// One.\nint a;\n    // Two\n    //\n    // lines.\nint b;\n#endif  // B\n{long}\n");
        let expected = format!(
            "/* One. */\nint a;\n    /* Two\n     *\n     * lines. */\nint b;\n#endif  /* B */\n/* {}\n */\n",
            "x".repeat(LINE_LENGTH_MAX - 4)
        );
        assert_eq!(with_c89_comments(&text), expected);
    }
}
