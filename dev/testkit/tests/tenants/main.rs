//! Hostile tenants: users who may write to a directory that others use too, by the side of whatever serves
//! it. What one of them leaves on disk, holds or asks must not hurt another. As whom a process acts can be
//! changed by root only: elsewhere these tests are skipped, and say so.

mod area;
mod buckets;
mod criticals;
mod ground;
mod matrix;
