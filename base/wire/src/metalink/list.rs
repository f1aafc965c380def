//! Plain lists of URLs, one a line, best first: what anybody can write.

use fordway_store::Result;

use super::{Metalink, MetalinkFile, MetalinkUrl, refused};

/// Lines that begin with `#` are remarks.
pub(super) fn read(text: &str) -> Result<Metalink> {
    let mut file = MetalinkFile::default();
    let lines = text.lines().map(str::trim).enumerate();
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let is_address =
            line.contains("://") && !line.contains(|c: char| c.is_whitespace() || c.is_control());
        if !is_address {
            let shown: String = line.chars().take(60).collect();
            return Err(refused(format!("line {} is {shown:?}; write a URL a line, or XML", number + 1)));
        }
        let priority = file.replicas.len() as u32 + 1;
        file.push_replica(MetalinkUrl { url: line.to_owned(), priority, location: None });
    }
    if file.replicas.is_empty() {
        return Err(refused("it is empty; write a URL a line, or XML"));
    }
    Ok(Metalink { files: vec![file] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_url() {
        let file = read("# best first\nhttps://a/f\n\n  http://b/f?x  \r\nhttps://a/f\n")
            .unwrap()
            .file(None)
            .unwrap();
        let found: Vec<_> = file.replicas.iter().map(|r| (r.url.as_str(), r.priority)).collect();
        assert_eq!(found, [("https://a/f", 1), ("http://b/f?x", 2)]);
        for bad in ["", "# nothing", "hello", "http://a b/c", "https://a/f\n/local/file"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
