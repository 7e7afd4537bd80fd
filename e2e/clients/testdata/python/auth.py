import etcd3.etcdrpc as rpc
import grpc
from etcd3.etcdrpc.auth_pb2 import Permission
from lib import Queue, Tape, equal, refused, true

denied = (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
failed = (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password")


def login(env, user, password=None):
    return env.dial(user=user, password=password or user)


def change(client, name, request):
    """Makes a call that changes users, for which the package has no methods."""
    return getattr(rpc.AuthStub(client.channel), name)(request, metadata=client.metadata)


# Each case stands on those above it.


def case_users_and_roles(env):
    c = env.client
    for name in ("root", "ann"):
        change(c, "UserAdd", rpc.AuthUserAddRequest(name=name, password=name))
        change(c, "RoleAdd", rpc.AuthRoleAddRequest(name=name))
        change(c, "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=name, role=name))
    change(c, "RoleGrantPermission", rpc.AuthRoleGrantPermissionRequest(
        name="ann", perm=Permission(permType=Permission.READWRITE, key=b"app/", range_end=b"app0")))
    equal(list(change(c, "UserList", rpc.AuthUserListRequest()).users), ["ann", "root"])
    c.put("other", "1")
    change(c, "AuthEnable", rpc.AuthEnableRequest())


def case_who_has_no_name_has_no_rights(env):
    refused(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", env.client.get, "app/k")
    refused(*failed, login, env, "ann", "wrong")
    refused(*failed, login, env, "bob")


def case_rights_on_keys(env):
    ann = login(env, "ann")
    ann.put("app/k", "1")
    equal(ann.get("app/k")[0], b"1")
    refused(*denied, ann.get, "other")
    refused(*denied, ann.put, "other", "2")
    refused(*denied, ann.delete, "other")
    refused(*denied, ann.replace, "other", "1", "2")
    refused(*denied, lambda: list(ann.get_all()))
    equal(login(env, "root").get("other")[0], b"1")
    tape = Tape(*ann.watch_prefix("app/"))
    ann.put("app/k", "2")
    equal(tape.next(1), ["put app/k=2"])
    tape.cancel()


def case_leases_and_locks(env):
    ann, other = login(env, "ann"), login(env, "ann")
    first = Queue(ann, "app/lock", ann.lease(30))
    first.acquire()
    equal([answer.TTL for answer in first.lease.refresh()], [30])
    first.lease.revoke()
    second = Queue(other, "app/lock", other.lease(30))
    second.acquire()
    true(second.token > first.token, "tokens grow")
    second.lease.revoke()
    refused(*denied, ann.put, "other", "2", lease=ann.lease(30))


def case_without_users_again(env):
    change(login(env, "root"), "AuthDisable", rpc.AuthDisableRequest())
    equal(env.client.get("other")[0], b"1")
