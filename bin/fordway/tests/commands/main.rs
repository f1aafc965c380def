//! Tests every command, both with an in-memory store and as the binary.

mod access;
mod admin;
mod binary;
mod care;
mod copying;
mod davix;
mod durable;
mod file_systems;
mod http_versions;
mod lanes;
mod listing;
mod policy;
mod proportion;
mod reading;
mod replicas;
mod selection;
mod sources;
mod special;
mod support;
mod trees;
mod versions;
mod web;
mod webdav;
