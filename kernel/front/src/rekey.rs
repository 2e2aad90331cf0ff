//! Signatures if clients and replicas have different keys. A Jupyter server makes a key for each start of a kernel, and
//! a kernel that outlived its server has the key of that server.

use hop_protocol::jupyter::{Envelope, Signer};
use hop_protocol::link::Item;
use hop_zmtp::Message;

/// The keys of both sides.
#[derive(Debug)]
pub(crate) struct Rekey {
    clients: Signer,
    replicas: Signer,
}

impl Rekey {
    /// `None` means that both sides have the same key.
    pub(crate) fn between(clients: &str, replicas: &str) -> Option<Self> {
        let signer = |key: &str| Signer::new(key.as_bytes());
        (clients != replicas).then(|| Self {
            clients: signer(clients),
            replicas: signer(replicas),
        })
    }

    pub(crate) fn to_replica(&self, item: Item) -> Item {
        signed(item, &self.replicas)
    }

    pub(crate) fn to_clients(&self, item: Item) -> Item {
        signed(item, &self.clients)
    }
}

/// The front verified requests at their arrival, and a replica proves itself by its connection.
fn signed(item: Item, signer: &Signer) -> Item {
    let Item::Jupyter {
        channel,
        identity,
        message,
    } = item
    else {
        return item;
    };
    let message = sign(message, signer);
    Item::Jupyter {
        channel,
        identity,
        message,
    }
}

fn sign(message: Message, signer: &Signer) -> Message {
    let Ok(mut envelope) = Envelope::parse(&message) else {
        return message;
    };
    signer.sign(&mut envelope);
    envelope.message()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use hop_protocol::jupyter::{Author, Channel};
    use hop_words::time::Timestamp;
    use serde_json::json;

    #[test]
    fn each_side_can_verify_what_the_other_has_signed() {
        assert!(Rekey::between("key", "key").is_none());
        let keys = Rekey::between("server's", "kernel's").unwrap();
        let mut author = Author::new(b"server's", "client".into());
        let parent = Bytes::from_static(b"{}");
        let request = author.write("execute_request", &parent, &json!({}), &json!({}), Timestamp(0));
        let item = |message| Item::Jupyter {
            channel: Channel::Shell,
            identity: Bytes::from_static(b"me"),
            message,
        };
        let verified = |item: &Item, key: &[u8]| {
            let Item::Jupyter { message, .. } = item else {
                panic!("it is a message");
            };
            let envelope = Envelope::parse(message).unwrap();
            Signer::new(key).verify(&envelope).is_ok()
        };
        let sent = keys.to_replica(item(request.message()));
        assert!(verified(&sent, b"kernel's") && !verified(&sent, b"server's"));
        assert!(verified(&keys.to_clients(sent), b"server's"));
    }
}
