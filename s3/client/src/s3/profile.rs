//! Reads a profile from the configuration files that all AWS tools share. The parser follows botocore, which uses
//! Python's `configparser`. In addition, a comment may follow a value, as in the AWS SDKs.

use std::path::{Path, PathBuf};

use fordway_store::{Error, ErrorKind, Result};

type ProfileSettings = Vec<(String, String)>;
type ProfileSection = (String, ProfileSettings);

/// A file that contains settings of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProfileFileKind {
    Credentials,
    Config,
}

/// The settings of one profile. Settings in the credentials file take precedence over settings in the config file.
#[derive(Default)]
pub(super) struct CredentialProfile {
    name: String,
    credentials: (PathBuf, ProfileSettings),
    config: (PathBuf, ProfileSettings),
}

impl CredentialProfile {
    /// Reads the profile that `AWS_DEFAULT_PROFILE` or `AWS_PROFILE` names, in the order of botocore, or `default`. A
    /// missing file counts as empty. Errors: `InvalidArgument` if a variable names a profile that does not exist; `Io`.
    pub(super) fn load(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = PathBuf::from(get("HOME").unwrap_or_default());
        let path = |name: &str, usual: &str| match get(name) {
            Some(path) => named_file(name, &path, &home),
            None => home.join(usual),
        };
        let credentials_file = path("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
        let config_file = path("AWS_CONFIG_FILE", ".aws/config");
        let secrets = read_sections(&credentials_file)?;
        let config = read_sections(&config_file)?;
        let wanted = get("AWS_DEFAULT_PROFILE").or_else(|| get("AWS_PROFILE"));
        Self::of_files(wanted, (credentials_file, secrets), (config_file, config))
    }

    /// Returns the profile `wanted`, or the profile `default`, from the two files. Errors: `InvalidArgument` if
    /// `wanted` does not exist.
    fn of_files(
        wanted: Option<String>,
        (credentials_file, secrets): (PathBuf, Vec<ProfileSection>),
        (config_file, config): (PathBuf, Vec<ProfileSection>),
    ) -> Result<Self> {
        let name = wanted.clone().unwrap_or_else(|| "default".to_owned());
        let titles = [name.clone(), format!("profile {name}")];
        let of_config = of_sections(&config, if name == "default" { &titles } else { &titles[1..] });
        let is_known = secrets.iter().chain(&config).any(|(title, _)| titles.contains(title));
        if wanted.is_some() && !is_known {
            let detail = format!(
                "no configuration file has the profile {name:?} (of AWS_PROFILE, AWS_DEFAULT_PROFILE or --profile)"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, detail));
        }
        let credentials = (credentials_file, of_sections(&secrets, &titles[..1]));
        let mut profile = CredentialProfile { name, credentials, config: (config_file, of_config) };
        profile.add_services(&config);
        Ok(profile)
    }

    /// Reads the profile `wanted` from the contents of the two files.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of_texts(wanted: Option<String>, secrets: &str, config: &str) -> Result<Self> {
        let file = |name: &str, text| (PathBuf::from(name), parse(text));
        Self::of_files(wanted, file("credentials", secrets), file("config", config))
    }

    /// Returns all settings in both files.
    #[cfg(feature = "fuzzing")]
    pub(super) fn settings(&self) -> impl Iterator<Item = &(String, String)> {
        self.credentials.1.iter().chain(&self.config.1)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a setting's value. S3's own settings have names of the form `s3.NAME`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let files = [ProfileFileKind::Credentials, ProfileFileKind::Config];
        files.into_iter().find_map(|file| self.get_in(file, name))
    }

    /// Returns the value that a setting has in one of the files.
    pub(super) fn get_in(&self, file: ProfileFileKind, name: &str) -> Option<&str> {
        let (_, settings) = self.file(file);
        settings.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns a phrase that describes the profile in messages.
    pub(super) fn described(&self, file: ProfileFileKind) -> String {
        format!("profile `{}` of {}", self.name, self.file(file).0.display())
    }

    fn file(&self, file: ProfileFileKind) -> &(PathBuf, ProfileSettings) {
        match file {
            ProfileFileKind::Credentials => &self.credentials,
            ProfileFileKind::Config => &self.config,
        }
    }

    fn add_services(&mut self, config: &[ProfileSection]) {
        if let Some(services) = self.get("services") {
            let title = format!("services {services}");
            self.config.1.extend(of_sections(config, &[title]));
        }
    }
}

/// Returns the file that an environment variable names. Expands `~` like botocore, because no shell expands it in the
/// settings of a service or a container. Logs a warning if the file does not exist.
fn named_file(variable: &str, path: &str, home: &Path) -> PathBuf {
    let below_home = path.strip_prefix("~/").filter(|_| !home.as_os_str().is_empty());
    let file = below_home.map_or_else(|| PathBuf::from(path), |rest| home.join(rest));
    if matches!(file.try_exists(), Ok(false)) {
        tracing::warn!("{variable} names the file {}, which does not exist", file.display());
    }
    file
}

fn of_sections(sections: &[ProfileSection], titles: &[String]) -> ProfileSettings {
    let wanted = sections.iter().filter(|(title, _)| titles.contains(title));
    wanted.flat_map(|(_, settings)| settings.iter().cloned()).collect()
}

fn read_sections(path: &Path) -> Result<Vec<ProfileSection>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        // The file also counts as missing if the home directory belongs to another user, or is not a directory
        // (`/dev/null`), as is common for services.
        Err(_) if path.try_exists().is_err() => Ok(Vec::new()),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("reading {}", path.display())).caused_by(error)),
    }
}

/// Parses sections of `name = value` lines. A line that is indented more than the setting above it belongs to that
/// setting, and the names of both form one name (`s3.endpoint_url`).
fn parse(text: &str) -> Vec<ProfileSection> {
    let mut sections: Vec<ProfileSection> = Vec::new();
    // The last setting that is not part of another setting, and its indentation.
    let mut outer: Option<(String, usize)> = None;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let content = line.trim();
        if content.is_empty() || content.starts_with(['#', ';']) {
            continue;
        }
        if let Some(title) = title(content) {
            sections.push((title, Vec::new()));
            outer = None;
            continue;
        }
        let (Some((_, settings)), Some((name, value))) = (sections.last_mut(), setting(content)) else {
            continue;
        };
        let indentation = line.len() - line.trim_start().len();
        match &outer {
            Some((outer, least)) if indentation > *least => settings.push((format!("{outer}.{name}"), value)),
            _ => {
                outer = Some((name.clone(), indentation));
                settings.push((name, value));
            }
        }
    }
    sections
}

/// If `line` is the header of a section, returns its title, with single spaces and without quotes.
fn title(line: &str) -> Option<String> {
    let title = line.strip_prefix('[').and_then(|rest| rest.rsplit_once(']'))?.0;
    let words = shell_words(title);
    Some(words.unwrap_or_else(|| title.split_whitespace().map(str::to_owned).collect()).join(" "))
}

/// Returns the name and the value of a setting. A comment after the value begins with white space and `#` or `;`. In
/// the command of `credential_process`, such text is part of the command.
fn setting(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_at(line.find(['=', ':'])?);
    let name = name.trim().to_ascii_lowercase();
    let value = value[1..].trim();
    let comment = |value: &str| {
        let marks = [" #", " ;", "\t#", "\t;"];
        marks.into_iter().filter_map(|mark| value.find(mark)).min()
    };
    let end = comment(value).filter(|_| name != "credential_process").unwrap_or(value.len());
    Some((name, value[..end].trim_end().to_owned()))
}

/// Splits a string into words like a POSIX shell, without any expansion; `None` if a quote is not closed.
pub(super) fn shell_words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' => word.get_or_insert_default().push_str(&quoted(&mut chars, '\'')?),
            '"' => word.get_or_insert_default().push_str(&quoted(&mut chars, '"')?),
            '\\' => word.get_or_insert_default().push(chars.next()?),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Some(words)
}

/// Returns the characters up to the closing quote. In double quotes, a backslash escapes a quote or another backslash.
fn quoted(chars: &mut std::str::Chars<'_>, quote: char) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            c if c == quote => return Some(text),
            '\\' if quote == '"' => match chars.next()? {
                c @ ('"' | '\\') => text.push(c),
                c => text.extend(['\\', c]),
            },
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_that_is_none_has_no_files() {
        let profile =
            CredentialProfile::load(&|name| (name == "HOME").then(|| "/dev/null".to_owned())).unwrap();
        assert_eq!(profile.get("region"), None);
        let dir = std::env::temp_dir().to_string_lossy().into_owned();
        let unreadable = CredentialProfile::load(&|name| (name == "AWS_CONFIG_FILE").then(|| dir.clone()));
        assert_eq!(unreadable.err().expect("a directory is not a file").kind(), ErrorKind::Io);
    }

    #[test]
    fn a_tilde_in_a_variable_is_the_home() {
        let home = Path::new("/home/me");
        for (given, found) in
            [("~/.aws/work", "/home/me/.aws/work"), ("/a", "/a"), ("~a/b", "~a/b"), ("a", "a")]
        {
            assert_eq!(named_file("AWS_CONFIG_FILE", given, home), Path::new(found));
        }
        assert_eq!(named_file("AWS_CONFIG_FILE", "~/a", Path::new("")), Path::new("~/a"));
    }

    #[test]
    fn odd_lines_are_parsed_like_the_tools_of_aws_do() {
        let text = "\u{feff}[default] ; main\n  aws_access_key_id=AK\n  Aws_Secret_Access_Key : s3cr/et=#;\t# old\n  s3 =\n    \
                    addressing_style = path\n  region\t=\tr ; here\n[profile 'my own']\nendpoint_url = http://h:1/#a\n\
                    credential_process = get --name 'a #1'\n[profile two  words]\nnothing\nempty =\n";
        let sections = parse(text);
        let of = |at: usize| -> (&str, Vec<(&str, &str)>) {
            let (title, settings) = &sections[at];
            (title, settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect())
        };
        let first = vec![
            ("aws_access_key_id", "AK"),
            ("aws_secret_access_key", "s3cr/et=#;"),
            ("s3", ""),
            ("s3.addressing_style", "path"),
            ("region", "r"),
        ];
        assert_eq!(of(0), ("default", first));
        let second = vec![("endpoint_url", "http://h:1/#a"), ("credential_process", "get --name 'a #1'")];
        assert_eq!(of(1), ("profile my own", second));
        assert_eq!(of(2), ("profile two words", vec![("empty", "")]));
    }

    #[test]
    fn words_of_a_command() {
        let words = |text| shell_words(text).map(|words| words.join("|"));
        assert_eq!(words(r#"a  'b c' "d\"e" f\ g "" h'i'"#).as_deref(), Some(r#"a|b c|d"e|f g||hi"#));
        assert_eq!((words("'open"), words("")), (None, Some(String::new())));
    }

    #[test]
    fn sections_and_nested_settings() {
        let text = "# comment\n[default]\nregion = eu-west-1 # here\n[ services  local ]\ns3 =\n  \
                    endpoint_url = http://h:1\n\nstray\n";
        let sections = parse(text);
        assert_eq!(sections[0], ("default".into(), vec![("region".into(), "eu-west-1".into())]));
        assert_eq!(sections[1].0, "services local");
        assert_eq!(sections[1].1[1], ("s3.endpoint_url".into(), "http://h:1".into()));
    }
}
