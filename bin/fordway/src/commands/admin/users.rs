//! `admin users`: checks a users file, and lists its users, roles and OIDC providers.

use std::fmt;

use fordway_command::{CommandContext, CommandExit, shown_name};
use fordway_serve::{UsersFileEntry, read_users_file};
use fordway_store::Result;
use serde::Serialize;

use crate::args::AdminUsersArgs;

pub(super) fn run(args: &AdminUsersArgs, context: &CommandContext) -> Result<CommandExit> {
    let entries = read_users_file(&args.file)?;
    for entry in &entries {
        context.output.record(&UsersFileEntryOutput(entry))?;
    }
    for useless in entries.iter().filter_map(|entry| warning(entry, &entries)) {
        context.output.note(&useless);
    }
    Ok(CommandExit::Ok)
}

/// Returns a warning about an entry that is valid but has no effect.
fn warning(entry: &UsersFileEntry, all: &[UsersFileEntry]) -> Option<String> {
    let name = shown_name(&entry.name);
    match entry.kind {
        "role" if entry.assumed_by.is_empty() && entry.issuers.is_empty() => Some(format!(
            "nobody may assume the role {name}; name users in assumed_by, or add a [[role.oidc]]"
        )),
        "oidc" if !all.iter().any(|role| role.issuers.contains(&entry.name)) => {
            Some(format!("no role trusts the provider {name}; add a [[role.oidc]] with this issuer"))
        }
        _ => None,
    }
}

/// One record of the output: an entry of the users file.
#[derive(Serialize)]
#[serde(transparent)]
struct UsersFileEntryOutput<'e>(&'e UsersFileEntry);

impl fmt::Display for UsersFileEntryOutput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.0;
        write!(f, "{} {}", entry.kind, shown_name(&entry.name))?;
        if entry.kind == "oidc" {
            return Ok(());
        }
        let list = |all: &[String]| all.iter().map(|name| shown_name(name)).collect::<Vec<_>>().join(" ");
        let mut facts = Vec::new();
        facts.extend(entry.access_key.as_ref().map(|key| format!("access key {}", shown_name(key))));
        facts.extend(entry.uid.map(|uid| format!("uid {uid}")));
        facts.extend(entry.gid.map(|gid| format!("gid {gid}")));
        if !entry.groups.is_empty() {
            let groups: Vec<_> = entry.groups.iter().map(u32::to_string).collect();
            facts.push(format!("groups {}", groups.join(" ")));
        }
        facts.push(
            entry.buckets.as_ref().map_or("all buckets".to_owned(), |all| format!("buckets {}", list(all))),
        );
        facts.extend(entry.prefixes.as_ref().map(|all| format!("prefixes {}", list(all))));
        facts.extend(entry.read_only.then(|| "read-only".to_owned()));
        for who in [&entry.assumed_by, &entry.issuers] {
            facts.extend((!who.is_empty()).then(|| format!("assumed by {}", list(who))));
        }
        write!(f, ": {}", facts.join(", "))
    }
}
