//! `kubectl auth`, and forbidden requests.

use crate::{lines, mk_shop};

#[tokio::test]
async fn auth_can_i_reports_the_permissions_of_a_user() {
    let plane = mk_shop().await;
    plane.login("eve", &[]);
    plane.run("create role reader --verb=get,list --resource=widgets.example.com").await.ok();
    plane.run("create rolebinding reader --role=reader --user=eve").await.ok();
    let can = async |line: &str| {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        plane.as_user("eve", &[&["auth", "can-i"], &arguments[..]].concat()).await
    };
    assert_eq!(can("get widgets.example.com").await.ok(), "yes\n");
    let no = can("delete widgets.example.com").await;
    assert_eq!((no.code, no.out.as_str()), (1, "no\n"));
    assert_eq!(can("get widgets.example.com -n elsewhere").await.code, 1);
    let list = lines(&can("--list").await.ok());
    assert!(list.iter().any(|line| line == "widgets.example.com [] [] [get list]"), "{list:?}");
    assert_eq!(plane.run("auth can-i * *").await.ok(), "yes\n");
    assert_eq!(plane.run("auth can-i delete widgets --as=eve").await.out, "no\n");
    assert!(plane.as_user("eve", &["auth", "whoami"]).await.ok().contains("eve"));

    plane.as_user("eve", &["get", "widgets"]).await.ok();
    plane.as_user("eve", &["delete", "widget", "a"]).await.refused("Forbidden");
    plane.as_user("eve", &["get", "secrets"]).await.refused("cannot list resource \"secrets\"");
}
