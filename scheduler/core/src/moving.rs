//! Moving a replica to where a GPU is free, when that is expected to be quicker than waiting.

use crate::core::Core;
use crate::id::{Incarnation, KernelId};
use crate::output::Output;

impl Core {
    pub(crate) fn consider_moving(&mut self, _cell: u32, _out: &mut Vec<Output>) {}

    /// GPUs are free on this node and nobody there wants them: perhaps somebody elsewhere does.
    pub(crate) fn offer(&mut self, _node: u32, _out: &mut Vec<Output>) {}

    pub(crate) fn moving_lost(&mut self, _kernel: u32, _incarnation: Incarnation) {}

    pub(crate) fn migration_done(
        &mut self,
        _kernel: &KernelId,
        _incarnation: Incarnation,
        _moved: bool,
        _out: &mut Vec<Output>,
    ) {
    }
}
