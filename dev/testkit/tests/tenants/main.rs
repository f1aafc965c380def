//! Tests hostile tenants: users with write permission for a directory that other users and the gateways also use. The
//! files, locks and requests of a tenant must not harm another tenant. Only root can change the user of a process, so
//! these tests are skipped without root.

mod area;
mod blocked;
mod buckets;
mod contested;
mod criticals;
mod delays;
mod ground;
mod lifecycle;
mod links;
mod matrix;
mod readers;
mod records;
mod restore;
mod versions;
