//! Hostile tenants: users who may write to a directory that other users and the gateways use too. Whatever a tenant
//! leaves on disk, holds or requests must not hurt another tenant. Only root can change the user that a process acts
//! as; without root, these tests are skipped and say so.

mod area;
mod buckets;
mod criticals;
mod delays;
mod ground;
mod links;
mod matrix;
