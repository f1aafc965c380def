//! How many connections are in use, and which is the next request's.

use std::sync::atomic::Ordering;

use fordway_store::Result;

use super::Engine;
use crate::vector::learned::Learned;
use crate::vector::line::Line;
use crate::vector::sink::Sink;

impl<S: Sink> Engine<S> {
    /// The connection for the next request, made if need be; `None` if it has to wait for an answer.
    /// Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    pub(super) fn line_for_next(&mut self) -> Result<Option<usize>> {
        let open = self.lines.iter().enumerate().filter(|(_, line)| line.is_open());
        let count = open.clone().count();
        let least = open.min_by_key(|(_, line)| line.depth());
        let least = least.filter(|(_, line)| line.depth() < line.depth_max(&self.server));
        match least.map(|(index, line)| (index, line.depth())) {
            Some((index, 0)) => Ok(Some(index)),
            Some((index, _)) if count >= self.lines_wanted() => Ok(Some(index)),
            None if count > 0 && count >= self.lines_wanted() => Ok(None),
            least => Ok(self.open()?.or(least.map(|(index, _)| index))),
        }
    }

    /// Few connections that are kept full, before many.
    fn lines_wanted(&self) -> usize {
        let cap = self.place.session.options.connections_per_origin;
        let Learned { pipelines, ranges_per_request, ignores_ranges, .. } = self.server;
        match (pipelines, ranges_per_request) {
            _ if ignores_ranges => 1,
            (true, 2..) => 1,
            (true, _) => {
                let each = self.lines.first().map_or(1, Line::ranges_each);
                self.queue.len().div_ceil(each).clamp(1, cap.max(1))
            }
            (false, _) => self.server.requests_for(self.queue.len()).clamp(1, cap.max(1)),
        }
    }

    /// Takes a further connection into use; `None` if there are as many as there may be.
    fn open(&mut self) -> Result<Option<usize>> {
        let (session, origin) = (&self.place.session, self.place.target.origin());
        let permit = match self.lines.is_empty() {
            true => session.permit(origin)?,
            false => match session.try_permit(origin) {
                Some(permit) => permit,
                None => return Ok(None),
            },
        };
        let (connection, is_new) = session.connection(origin)?;
        self.source.traffic.connections.fetch_add(u64::from(is_new), Ordering::Relaxed);
        self.lines.push(Line::new(connection, permit));
        Ok(Some(self.lines.len() - 1))
    }
}
