//! How many pilots there are, and where.

use crate::core::Core;
use crate::output::Output;

impl Core {
    pub(crate) fn start_scaling(&mut self, _pool: u32) {}

    pub(crate) fn scale_due(&mut self, pool: u32, out: &mut Vec<Output>) {
        self.keep_pilots(pool, out);
    }

    pub(crate) fn demand_grew(&mut self, _cell: u32, _out: &mut Vec<Output>) {}

    pub(crate) fn maybe_idle(&mut self, _pilot: u32, _out: &mut Vec<Output>) {}

    pub(crate) fn pilot_gone(&mut self, _node: u32, _out: &mut Vec<Output>) {}
}
