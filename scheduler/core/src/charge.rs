//! Charges the GPUs of leases to kernels, users and accounts.

use crate::core::Core;
use crate::index::Idx;
use crate::journal::{Key, Value};
use crate::output::Output;
use crate::state::{Account, Lease, User};
use crate::usage::{Decay, Usage};

impl Core {
    pub(crate) fn decay(&self) -> Decay {
        Decay {
            origin: self.origin,
            half_life: self.config.usage_half_life,
        }
    }

    /// Inflated usage up to now.
    pub(crate) fn used(&self, usage: &Usage) -> f64 {
        usage.inflated(&self.decay(), self.now)
    }

    /// Usage that is left, in GPU-seconds.
    pub(crate) fn usage_left(&self, usage: &Usage) -> f64 {
        self.decay().deflate(self.used(usage), self.now)
    }

    /// The lease's GPUs count as held by its kernel, user and account (`taken`), or no longer.
    pub(crate) fn use_gpus(&mut self, lease: &Lease, taken: bool) {
        let gpus = i32::from(lease.gpus) * if taken { 1 } else { -1 };
        let (decay, now) = (self.decay(), self.now);
        self.people.users[lease.user].usage.hold(gpus, &decay, now);
        self.people.accounts[lease.account].usage.hold(gpus, &decay, now);
        let used_in = self
            .people
            .used_in
            .entry((lease.user, lease.account))
            .or_default();
        used_in.hold(gpus, &decay, now);
        self.work.kernels[lease.kernel].usage.hold(gpus, &decay, now);
    }

    /// Writes the usage of the leases of a user, of an account, and of both together to the journal. Slurm keeps the
    /// rest, and reports it again.
    pub(crate) fn note_usage(&self, user: Idx<User>, account: Idx<Account>, out: &mut Vec<Output>) {
        let used_in = self.people.used_in.get(&(user, account));
        let (user, account) = (&self.people.users[user], &self.people.accounts[account]);
        let decay = self.decay();
        let value = |usage: &Usage| {
            Some(Value::Usage {
                usage: decay.deflate(usage.of_leases(&decay, self.now), self.now),
                at: self.now,
            })
        };
        self.note(|| Key::User(user.name.clone()), || value(&user.usage), out);
        if let Some(name) = &account.name {
            self.note(|| Key::Account(name.clone()), || value(&account.usage), out);
        }
        let key = || Key::Association(user.name.clone(), account.name.clone());
        self.note(key, || used_in.and_then(value), out);
    }
}
