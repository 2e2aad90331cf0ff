//! Opens a place with the settings of the environment.
//!
//! Credentials come from where the AWS tools have them: environment, profile, web identity, container, instance. They
//! are never in an address or an argument, and never told.

use crate::address::Place;
use crate::error::RemoteError;
use crate::profile;
use crate::remote::Remote;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, Certificate, ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time for a request: with eight chunks under way, a rate of 2 Mbit/s. `AWS_TIMEOUT` sets another.
const REQUEST: &str = "120s";
/// Attempts of a request that fails for a passing reason. `AWS_MAX_ATTEMPTS` sets another.
const ATTEMPTS: usize = 5;
/// Time after which a failed request isn't tried again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The environment's variables.
pub type Variables = BTreeMap<String, String>;

impl Remote {
    /// The states at a place. Nothing is sent yet.
    ///
    /// # Errors
    /// [`RemoteError::Settings`] or [`RemoteError::NoCredentials`]; for a folder, also when others can read it.
    pub fn open(place: &Place, env: &Variables) -> Result<Self, RemoteError> {
        match place {
            Place::S3 { bucket, prefix } => Ok(Self::new(s3(bucket, env)?, prefix.clone())),
            Place::Folder(folder) => Ok(Self::new(self::folder(folder)?, Path::default())),
        }
    }
}

fn folder(folder: &FilePath) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    let failed =
        |why: String| RemoteError::Settings(format!("the folder {} can't be used: {why}", folder.display()));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|e| failed(e.to_string()))?;
    let found = fs::metadata(folder).map_err(|e| failed(e.to_string()))?;
    if found.mode() & 0o077 != 0 {
        return Err(failed(format!(
            "it is open to other users: chmod 700 {}",
            folder.display()
        )));
    }
    let store = LocalFileSystem::new_with_prefix(folder).map_err(|e| failed(e.to_string()))?;
    Ok(Arc::new(store))
}

/// TLS needs a single provider for the process: the first installed provider stays.
pub fn one_tls_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn s3(bucket: &str, env: &Variables) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    let bad =
        |e: object_store::Error| RemoteError::Settings(format!("the settings for S3 can't be used: {e}"));
    one_tls_provider();
    let settings = settings(env)?;
    let mut options = ClientOptions::new().with_config(ClientConfigKey::Timeout, REQUEST);
    let mut builder = AmazonS3Builder::new();
    for (key, value) in &settings {
        match key {
            AmazonS3ConfigKey::Client(key) => options = options.with_config(*key, value),
            key => builder = builder.with_config(*key, value),
        }
    }
    if let Some(bundle) = env.get("AWS_CA_BUNDLE").filter(|path| !path.is_empty()) {
        for certificate in certificates(FilePath::new(bundle))? {
            options = options.with_root_certificate(certificate);
        }
    }
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(5),
            base: 2.0,
        },
        max_retries: attempts(env)?.saturating_sub(1),
        retry_timeout: PATIENCE,
    };
    let store = builder
        .with_client_options(options)
        .with_retry(retry)
        .with_bucket_name(bucket)
        .build()
        .map_err(bad)?;
    Ok(Arc::new(store))
}

fn attempts(env: &Variables) -> Result<usize, RemoteError> {
    let Some(text) = env.get("AWS_MAX_ATTEMPTS") else {
        return Ok(ATTEMPTS);
    };
    text.parse()
        .map_err(|_| RemoteError::Settings(format!("AWS_MAX_ATTEMPTS is {text:?}, which isn't a number")))
}

fn certificates(bundle: &FilePath) -> Result<Vec<Certificate>, RemoteError> {
    let failed = |why: String| {
        RemoteError::Settings(format!("AWS_CA_BUNDLE {} can't be used: {why}", bundle.display()))
    };
    let pem = fs::read(bundle).map_err(|e| failed(e.to_string()))?;
    Certificate::from_pem_bundle(&pem).map_err(|e| failed(e.to_string()))
}

type Settings = Vec<(AmazonS3ConfigKey, String)>;

/// Settings from the environment, completed by the profile.
fn settings(env: &Variables) -> Result<Settings, RemoteError> {
    let mut settings: Settings = env
        .iter()
        .filter(|(key, value)| key.starts_with("AWS_") && !value.is_empty())
        .filter_map(|(key, value)| Some((key.to_ascii_lowercase().parse().ok()?, value.clone())))
        .collect();
    let profile = of_profile(env);
    let has =
        |settings: &Settings, keys: &[AmazonS3ConfigKey]| settings.iter().any(|(k, _)| keys.contains(k));
    let take = |settings: &mut Settings, key, name: &str| {
        if let Some(value) = profile.get(name) {
            settings.push((key, value.clone()));
        }
    };
    use AmazonS3ConfigKey as Key;
    if !has(&settings, &[Key::Region, Key::DefaultRegion]) {
        take(&mut settings, Key::Region, "region");
    }
    if !has(&settings, &[Key::Endpoint, Key::S3Endpoint]) {
        take(&mut settings, Key::Endpoint, "endpoint_url");
    }
    let others = [
        Key::AccessKeyId,
        Key::SecretAccessKey,
        Key::WebIdentityTokenFile,
        Key::ContainerCredentialsRelativeUri,
        Key::ContainerCredentialsFullUri,
        Key::SkipSignature,
    ];
    if !has(&settings, &others) {
        take(&mut settings, Key::AccessKeyId, "aws_access_key_id");
        take(&mut settings, Key::SecretAccessKey, "aws_secret_access_key");
        take(&mut settings, Key::Token, "aws_session_token");
    }
    if !has(&settings, &others) {
        no_keys(env, &profile)?;
    }
    http(&settings)?;
    Ok(settings)
}

/// Error for missing keys, unless the machine may have credentials of its own.
fn no_keys(env: &Variables, profile: &BTreeMap<String, String>) -> Result<(), RemoteError> {
    let other = ["credential_process", "sso_session", "sso_start_url", "role_arn"];
    if let Some(kind) = other.iter().find(|kind| profile.contains_key(**kind)) {
        return Err(RemoteError::NoCredentials(format!(
            "; the profile has {kind}, which this doesn't do: `aws configure export-credentials --format env` gives keys"
        )));
    }
    let off = env
        .get("AWS_EC2_METADATA_DISABLED")
        .is_some_and(|v| v.eq_ignore_ascii_case("true"));
    if off || env.contains_key("AWS_PROFILE") {
        return Err(RemoteError::NoCredentials(String::new()));
    }
    Ok(())
}

/// Plain HTTP shows content to the network: only when it is asked for.
fn http(settings: &Settings) -> Result<(), RemoteError> {
    let of = |key| settings.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str());
    let endpoint = of(AmazonS3ConfigKey::S3Endpoint).or_else(|| of(AmazonS3ConfigKey::Endpoint));
    let allowed = of(AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
    match endpoint {
        Some(endpoint)
            if endpoint.starts_with("http://")
                && !allowed.is_some_and(|a| a.eq_ignore_ascii_case("true")) =>
        {
            Err(RemoteError::Settings(format!(
                "{endpoint} isn't encrypted, others on the network could read the state: use https://, or set \
                 AWS_ALLOW_HTTP=true if that is all right"
            )))
        }
        _ => Ok(()),
    }
}

fn of_profile(env: &Variables) -> BTreeMap<String, String> {
    let name = env.get("AWS_PROFILE").map_or("default", String::as_str);
    let wanted = [name.to_owned(), format!("profile {name}")];
    let home = env.get("HOME").map(PathBuf::from).unwrap_or_default();
    let file = |variable: &str, usual: &str| {
        let path = env.get(variable).map_or_else(|| home.join(usual), PathBuf::from);
        // A file that can't be read says nothing, as for the AWS tools.
        fs::read_to_string(path).unwrap_or_default()
    };
    let mut found = profile::section(&file("AWS_CONFIG_FILE", ".aws/config"), &wanted);
    found.extend(profile::section(
        &file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"),
        &wanted,
    ));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Variables {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn open(pairs: &[(&str, &str)]) -> Result<Remote, String> {
        Remote::open(&"s3://bucket/me".parse().unwrap(), &env(pairs)).map_err(|e| e.to_string())
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "s3cret")];

    #[test]
    fn keys_come_from_the_environment_or_a_profile() {
        open(&KEYS).unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".aws")).unwrap();
        fs::write(
            home.path().join(".aws/credentials"),
            "[work]\naws_access_key_id = id\naws_secret_access_key = s3cret\n",
        )
        .unwrap();
        fs::write(
            home.path().join(".aws/config"),
            "[profile work]\nregion = eu-1\n[profile sso]\nsso_session = x\n",
        )
        .unwrap();
        let at = home.path().to_str().unwrap();
        let found = settings(&env(&[("HOME", at), ("AWS_PROFILE", "work")])).unwrap();
        let keys = [
            (AmazonS3ConfigKey::Region, "eu-1"),
            (AmazonS3ConfigKey::AccessKeyId, "id"),
            (AmazonS3ConfigKey::SecretAccessKey, "s3cret"),
        ];
        assert_eq!(found, keys.map(|(k, v)| (k, v.to_owned())));
        let failed = open(&[("HOME", at), ("AWS_PROFILE", "sso")]).unwrap_err();
        assert!(failed.contains("sso_session"), "{failed}");
        assert!(
            open(&[("HOME", at), ("AWS_PROFILE", "none")])
                .unwrap_err()
                .contains("no credentials")
        );
        assert!(
            open(&[("AWS_EC2_METADATA_DISABLED", "true")])
                .unwrap_err()
                .contains("no credentials")
        );
    }

    #[test]
    fn plain_http_is_only_used_where_it_is_allowed() {
        let with = |more: &[(&str, &str)]| open(&[&KEYS[..], more].concat());
        let failed = with(&[("AWS_ENDPOINT_URL", "http://s3")]).unwrap_err();
        assert!(
            failed.contains("AWS_ALLOW_HTTP") && !failed.contains("s3cret"),
            "{failed}"
        );
        with(&[("AWS_ENDPOINT_URL", "http://s3"), ("AWS_ALLOW_HTTP", "true")]).unwrap();
        with(&[("AWS_ENDPOINT_URL", "https://s3")]).unwrap();
        assert!(
            with(&[("AWS_MAX_ATTEMPTS", "many")])
                .unwrap_err()
                .contains("AWS_MAX_ATTEMPTS")
        );
        assert!(
            with(&[("AWS_CA_BUNDLE", "/no/such")])
                .unwrap_err()
                .contains("AWS_CA_BUNDLE")
        );
    }

    #[test]
    fn a_folder_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("states");
        let place = Place::Folder(at.clone());
        Remote::open(&place, &Variables::new()).unwrap();
        assert_eq!(fs::metadata(&at).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
        assert!(
            Remote::open(&place, &Variables::new())
                .unwrap_err()
                .to_string()
                .contains("chmod 700")
        );
    }
}
