//! Addresses: `s3://BUCKET/PREFIX/NAME` and `file:///FOLDER/NAME`.

use object_store::path::Path;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where several states and their content lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    S3 { bucket: String, prefix: Path },
    Folder(PathBuf),
}

/// Address of a state: the name within a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub place: Place,
    pub name: Name,
}

/// A state's name: one part of a path, of printable characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

/// Why a text isn't an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} isn't an address: {why}; write s3://BUCKET/PREFIX/NAME or file:///FOLDER/NAME")]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl Name {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn of(text: &str) -> Result<Self, &'static str> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@+=".contains(c);
        if text.is_empty() {
            Err("the name of a state is missing at its end")
        } else if text.starts_with('.') || !text.chars().all(plain) || text.len() > 200 {
            Err(
                "a state's name has letters, digits and -_.@+=, doesn't begin with a dot and isn't longer than 200",
            )
        } else {
            Ok(Self(text.to_owned()))
        }
    }
}

impl FromStr for Name {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of(text).map_err(|why| AddressError {
            text: text.to_owned(),
            why,
        })
    }
}

impl Place {
    /// A state in it.
    pub fn state(&self, name: Name) -> Address {
        Address {
            place: self.clone(),
            name,
        }
    }

    fn of(text: &str) -> Result<Self, &'static str> {
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.contains(['@', ':']) {
                return Err(
                    "credentials don't belong there (use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)",
                );
            }
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if bucket.is_empty() || !bucket.chars().all(plain) {
                return Err("that isn't the name of a bucket");
            }
            let prefix = Path::parse(prefix.trim_end_matches('/')).map_err(|_| "its path isn't usable")?;
            return Ok(Self::S3 {
                bucket: bucket.to_owned(),
                prefix,
            });
        }
        let Some(folder) = text.strip_prefix("file://") else {
            return Err("it begins neither with s3:// nor with file://");
        };
        let folder = PathBuf::from(folder);
        if !folder.is_absolute() || folder.components().any(|c| c.as_os_str() == "..") {
            return Err("a folder's path is absolute, without ..");
        }
        Ok(Self::Folder(folder))
    }
}

impl FromStr for Place {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::of(text).map_err(|why| AddressError {
            text: hidden(text),
            why,
        })
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let failed = |why| AddressError {
            text: hidden(text),
            why,
        };
        let (_, path) = text.split_once("://").ok_or_else(|| failed("it has no ://"))?;
        if !path.contains('/') {
            Place::of(text).map_err(failed)?;
            return Err(failed("the name of a state is missing at its end"));
        }
        let (place, name) = text.rsplit_once('/').expect("there is a slash");
        Ok(Self {
            place: Place::of(place).map_err(failed)?,
            name: Name::of(name).map_err(failed)?,
        })
    }
}

/// The text without a part before an `@` in the host's place, which might be a secret.
fn hidden(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    match host.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://...@{host}/{path}"),
        None => text.to_owned(),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } if prefix.as_ref().is_empty() => write!(f, "s3://{bucket}"),
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::Folder(folder) => write!(f, "file://{}", folder.display()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.place, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in [
            "s3://b/work",
            "s3://my-bucket/a/b/work",
            "file:///srv/states/work",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let address: Address = "s3://b/a/work@1".parse().unwrap();
        assert_eq!(
            (address.place.to_string().as_str(), address.name.as_str()),
            ("s3://b/a", "work@1")
        );
        assert_eq!("s3://b/a/".parse::<Place>().unwrap().to_string(), "s3://b/a");
        assert_eq!("s3://b".parse::<Place>().unwrap().to_string(), "s3://b");
    }

    #[test]
    fn what_is_no_address_is_refused_and_shows_no_secret() {
        for text in [
            "work",
            "s3://",
            "s3://b",
            "s3://b/",
            "s3://b/a/",
            "s3:///x",
            "s3://b/../x",
            "s3://b/.x",
            "s3://b/a b",
            "http://b/x",
            "file://x",
            "file:///a/../x",
            "s3://k:secret@b/x",
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
