//! Hostile tenants: users who may write to a directory that other users and the gateways also use. Whatever a tenant
//! leaves on disk, locks or requests must not harm another tenant. Only root can change the user that a process acts
//! as; without root, these tests report that they are skipped.

mod area;
mod buckets;
mod criticals;
mod delays;
mod ground;
mod lifecycle;
mod links;
mod matrix;
