//! Set-ups: how two programs, ping and pong, are started, and what network is between them. Each is a small
//! TOML file (`docs/reference/networks.md` says how to write one); the usual ones are built in.

mod accelerator;
mod container;
mod ends;
mod log;
mod running;
mod step;
mod wire;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use fordway_store::{Error, ErrorKind, Result};
use serde::Deserialize;

pub use ends::{End, Ends};
pub use running::{Programs, Running, Side};
pub use wire::Wire;

/// The built-in set-ups, the reference first, and templates for machines of your own.
const BUILT_IN: &[(&str, &str)] = &[
    ("bare", include_str!("../../setups/bare.toml")),
    ("container", include_str!("../../setups/container.toml")),
    ("bridge", include_str!("../../setups/bridge.toml")),
    ("container-bridge", include_str!("../../setups/container-bridge.toml")),
    ("routed", include_str!("../../setups/routed.toml")),
    ("vxlan", include_str!("../../setups/vxlan.toml")),
    ("tunnel", include_str!("../../setups/tunnel.toml")),
    ("ovs", include_str!("../../setups/ovs.toml")),
    ("wireguard", include_str!("../../setups/wireguard.toml")),
    ("vm", include_str!("../../setups/vm.toml")),
    ("loopback", include_str!("../../setups/loopback.toml")),
    ("ssh", include_str!("../../setups/ssh.toml")),
    ("docker", include_str!("../../setups/docker.toml")),
    ("podman", include_str!("../../setups/podman.toml")),
    ("kubernetes", include_str!("../../setups/kubernetes.toml")),
    ("slurm", include_str!("../../setups/slurm.toml")),
];

/// Where a set-up runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ground {
    /// In namespaces: two networks, `ping` and `pong`, joined by a wire, and as many others as it names.
    #[default]
    Namespaces,
    /// In the network of this machine, or wherever its commands lead.
    Machine,
}

/// How ping and pong are started, and where.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Setup {
    /// Its name in tables.
    #[serde(skip)]
    pub name: String,
    /// One sentence.
    pub description: String,
    /// Where it runs.
    #[serde(default)]
    pub on: Ground,
    /// Whether it emulates a machine, whose times then differ from a real one's.
    #[serde(default)]
    pub is_emulated: bool,
    /// Programs that must be there.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// Words in braces and what they stand for, unless the user says otherwise; empty is for what must be said.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// Networks beside `ping` and `pong`.
    #[serde(default)]
    pub networks: Vec<String>,
    /// Whether its steps bridge the wire, which must then carry frames, as the link emulator does not.
    #[serde(default)]
    pub needs_ethernet: bool,
    /// What is done before pong and ping are started, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The one that answers.
    pub pong: Part,
    /// The one that asks it.
    pub ping: Part,
}

/// A program that must be there, and the package of Debian that brings it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// Its name.
    pub program: String,
    /// Where it comes from.
    pub package: String,
}

/// One step; what it has of these is done in this order.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// In which network.
    #[serde(rename = "in")]
    pub network: String,
    /// Parameters of the network, named by their paths below `/proc/sys`.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// Commands of the program `ip`, one a line.
    pub ip: Option<String>,
    /// A command that is waited for, and must succeed.
    pub run: Option<Vec<String>>,
    /// What that command reads.
    pub input: Option<String>,
    /// A command that goes on until the set-up is taken down.
    pub start: Option<Vec<String>>,
    /// A file, or a device as `/sys/class/net/NAME`, by which it is known that `start` is ready.
    pub ready: Option<String>,
}

/// Where one of the two programs runs, and how it is reached.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// In which network; `None` on a machine.
    #[serde(rename = "in")]
    pub network: Option<String>,
    /// Where it is reached: pong by ping, and ping by the load.
    pub address: String,
    /// How it is started, if not as usual. What is to be said to the program follows at the end.
    pub command: Option<Vec<String>>,
    /// Whether it is run in a container of its own.
    #[serde(default)]
    pub container: bool,
    /// Whether only the other program can reach it, so that nobody can wait for it here.
    #[serde(default)]
    pub hidden: bool,
}

impl Setup {
    /// A built-in one by its name, or one in a file (what has a slash, or ends with `.toml`).
    /// Errors: `InvalidArgument` for a name that is none, or a file that describes no set-up.
    pub fn load(name: &str) -> Result<Self> {
        if name.contains('/') || name.ends_with(".toml") {
            let text = std::fs::read_to_string(name).map_err(|error| {
                Error::new(ErrorKind::InvalidArgument, format!("reading the set-up {name}")).caused_by(error)
            })?;
            let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
            return Setup::parse(&stem, &text);
        }
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Setup::parse(name, text),
            None => {
                let known: Vec<_> = BUILT_IN.iter().map(|(known, _)| *known).collect();
                let detail = format!(
                    "there is no set-up {name:?}; name a file, or one of these: {}",
                    known.join(", ")
                );
                Err(Error::new(ErrorKind::InvalidArgument, detail))
            }
        }
    }

    /// All built-in ones, the reference first.
    pub fn all() -> Result<Vec<Self>> {
        BUILT_IN.iter().map(|(name, text)| Setup::parse(name, text)).collect()
    }

    /// Errors: `InvalidArgument` for what describes no set-up.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, format!("the set-up {name}: {why}"));
        let setup: Setup = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let setup = Setup { name: name.to_owned(), ..setup };
        setup.check().map_err(wrong)?;
        Ok(setup)
    }

    /// Whether it emulates a machine, by its own words or because its accelerator does.
    pub fn emulates(&self) -> bool {
        self.is_emulated || self.accelerator().is_some_and(accelerator::emulates)
    }

    /// Its name with the mark of what is emulated, for every table and figure.
    pub fn label(&self) -> String {
        if self.emulates() { format!("{} (emulated)", self.name) } else { self.name.clone() }
    }

    /// What runs its virtual machine; `None` if it has none.
    fn accelerator(&self) -> Option<&str> {
        self.variables.get(accelerator::WORD).map(|said| accelerator::resolved(said))
    }

    /// Whether it can be run as it is: nothing must be said about it first.
    pub fn is_complete(&self) -> bool {
        self.variables.values().all(|value| !value.is_empty())
    }

    /// Whether it is one of those that are measured when none is named: in namespaces, and complete.
    pub fn is_usual(&self) -> bool {
        self.on == Ground::Namespaces && self.is_complete() && !self.emulates()
    }

    /// Where its programs listen: beyond the loopback device only in networks of their own.
    pub fn bind(&self) -> &'static str {
        if self.on == Ground::Namespaces { "0.0.0.0" } else { "127.0.0.1" }
    }

    /// What contradicts itself.
    fn check(&self) -> std::result::Result<(), String> {
        let parts = [&self.ping, &self.pong].map(|part| part.network.as_deref());
        if self.on == Ground::Machine {
            let has_networks = parts.iter().any(Option::is_some) || !self.networks.is_empty();
            return match has_networks || !self.steps.is_empty() {
                true => Err("on a machine there are neither networks nor steps".to_owned()),
                false => Ok(()),
            };
        }
        if parts.contains(&None) {
            return Err("ping and pong each need `in`, the network where they are".to_owned());
        }
        let used = parts.iter().flatten().copied().chain(self.steps.iter().map(|step| step.network.as_str()));
        let is_known = |name: &&str| {
            ["ping", "pong"].contains(name) || self.networks.iter().any(|network| network == name)
        };
        let mut used = used;
        match used.find(|name| !is_known(name)) {
            Some(name) => Err(format!("there is no network {name:?}; name it in `networks`")),
            None => Ok(()),
        }
    }

    /// The programs that are missing, each with where it comes from.
    pub fn missing(&self) -> Vec<Need> {
        let is_missing = |need: &&Need| step::found(&need.program).is_none();
        let mut missing: Vec<Need> = self.needs.iter().filter(is_missing).cloned().collect();
        let has_container = self.ping.container || self.pong.container;
        missing.extend(has_container.then(container::missing).flatten());
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_built_in_are_sound() {
        let all = Setup::all().unwrap();
        assert_eq!(all[0].name, "bare", "the reference is the first");
        let usual: Vec<_> =
            all.iter().filter(|setup| setup.is_usual()).map(|setup| setup.name.as_str()).collect();
        assert!(usual.len() >= 9 && !usual.contains(&"loopback"), "{usual:?}");
        let templates: Vec<_> = all.iter().filter(|setup| !setup.is_complete()).collect();
        assert!(templates.iter().all(|setup| setup.on == Ground::Machine) && templates.len() >= 3);
    }

    #[test]
    fn what_describes_no_set_up_is_refused() {
        let parts = "[ping]\nin = \"ping\"\naddress = \"a\"\n[pong]\nin = \"pong\"\naddress = \"b\"\n";
        let refused = |text: String| {
            let error = Setup::parse("x", &text).expect_err("it is no set-up");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        assert!(Setup::parse("x", &format!("description = \"d\"\n{parts}")).is_ok());
        assert!(refused(parts.to_owned()).contains("description"));
        assert!(refused(format!("description = \"d\"\ncolour = 1\n{parts}")).contains("colour"));
        let elsewhere = parts.replace("in = \"pong\"", "in = \"moon\"");
        assert!(refused(format!("description = \"d\"\n{elsewhere}")).contains("\"moon\""));
        let nowhere = parts.replace("in = \"pong\"\n", "");
        assert!(refused(format!("description = \"d\"\n{nowhere}")).contains("`in`"));
        assert!(refused(format!("description = \"d\"\non = \"machine\"\n{parts}")).contains("neither"));
        let unknown = Setup::load("moon").expect_err("it is none").to_string();
        assert!(unknown.contains("bare"), "{unknown}");
    }
}
